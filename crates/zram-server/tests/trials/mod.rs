//! What is done with an input that the fuzzer found for the control socket (`make fuzz`), there and in the test that
//! replays them: it is a line that somebody asks.

use zram_server::control::answer;
use zram_server::{Options, Server, start};

/// Words of lines that are not asked: what they name is outside of the device. A backslash may write one in another
/// way.
const OUTSIDE: [&str; 5] = ["hot_remove", "backing_dev", "dict", "/", "\\"];

/// What the device is before each line.
const BEGIN: [(&str, &str); 7] = [
    ("reset", "1"),
    ("mem_limit", "0"),
    ("auto_recompress", "0"),
    ("auto_writeback", "0"),
    ("comp_algorithm", "lz4"),
    ("recomp_algorithm", "algo=zstd priority=1"),
    ("disksize", "256K"),
];

/// A server with a small device.
pub struct Trials {
    server: &'static Server,
}

impl Trials {
    /// One that serves it until the process ends.
    pub fn new() -> Trials {
        let options = Options { attributes: vec![("disksize".into(), "1M".into())], ..Options::default() };
        Trials { server: start(options).expect("a device can be served") }
    }

    /// Asks one line. The answer is one line, and the device is sound.
    pub fn run(&mut self, input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        if OUTSIDE.iter().any(|word| text.contains(word)) {
            return;
        }
        let (device, data) = (self.server.device(), data());
        for (name, value) in BEGIN {
            device.set(name, value).expect("it takes that");
        }
        let mut worker = device.worker();
        device.write(&mut worker, 0, &data).expect("there is memory");
        let answer = answer(self.server, input);
        let line = answer.line();
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line:?}");
        assert_eq!(answer.status == 0, answer.error.is_none(), "{line}");
        device.check().expect("the device is sound");
        // What has a size and was not reset holds what was written.
        let mut read = vec![0; data.len()];
        if !text.contains("reset") && device.read(&mut worker, 0, &mut read).is_ok() {
            assert!(read == data, "{text}: it has other contents");
        }
    }

    /// Ends the server, whose directory goes.
    pub fn end(&self) {
        self.server.end();
    }

    /// Inputs to begin with: each thing that can be asked, and each attribute.
    pub fn first_inputs(&self) -> Vec<Vec<u8>> {
        let asked = [
            r#"{"do":"list"}"#,
            r#"{"do":"show"}"#,
            r#"{"do":"show","name":"mm_stat"}"#,
            r#"{"do":"reset"}"#,
            r#"{"do":"set","values":[["disksize","64K"],["compact","1"]]}"#,
            r#"{"do":"set","values":[["recompress","type=huge_idle algo=zstd priority=1 threshold=100 max_pages=9"]]}"#,
            r#"{"do":"set","values":[["algorithm_params","priority=1 level=3"]]}"#,
            r#"{"do":"set","values":[["writeback","page_indexes=1-2 type=idle"],["idle","all"]]}"#,
        ];
        let names = zram::ATTRIBUTES.iter().map(|attribute| attribute.name);
        let set = names.map(|name| format!(r#"{{"do":"set","values":[["{name}","1"],["{name}","max"]]}}"#));
        asked.iter().map(|text| text.to_string()).chain(set).map(String::into_bytes).collect()
    }
}

/// A block of words, a group that becomes one object, one word again and again, and noise.
fn data() -> Vec<u8> {
    let words = b"a few words ".iter().copied().cycle().take(17 * 4096);
    let noise = (0u64..512).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 29).to_le_bytes());
    words.chain([5; 4096]).chain(noise).collect()
}
