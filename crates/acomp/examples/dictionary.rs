//! What a dictionary gains: `dictionary MEMORY [DICTIONARY]`. One is trained from 1 MiB of the file's pages, spread over it, and units in between are compressed
//! without, with that one, and with the one of the second file; in turn, each three times, of which the quickest counts.

use acomp::train::Trainer;
use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Outcome, TRAINED_BYTES};
use std::error::Error;
use std::time::{Duration, Instant};

const WINDOW: usize = 64 << 10;
const SAMPLES_BYTES: usize = 1 << 20;
const ROUNDS: usize = 3;

struct Row {
    name: &'static str,
    context: Context,
    place: Option<usize>,
    bytes: usize,
    out: Duration,
    back: Duration,
}

impl Row {
    fn new(name: &'static str, level: i32, dictionary: Option<&[u8]>) -> Result<Row, acomp::Error> {
        let text =
            if dictionary.is_some() { format!("zstd:{level},dict=FILE") } else { format!("zstd:{level}") };
        let mut context = Context::new(Compressor::parse(&text).expect("it is in the registry"), WINDOW)?;
        let place = dictionary.map(|dictionary| context.learn(0, dictionary)).transpose()?.map(|()| 0);
        Ok(Row { name, context, place, bytes: 0, out: Duration::MAX, back: Duration::MAX })
    }

    fn round(&mut self, units: &[&[u8]]) {
        let mut rooms: Vec<Vec<u8>> = units.iter().map(|unit| vec![0; unit.len() + 1024]).collect();
        let began = Instant::now();
        for (unit, room) in units.iter().zip(&mut rooms) {
            let mut batch = [CompressRequest::new(unit, room).with(self.place)];
            self.context.compress(&mut batch);
            let Ok(Outcome::Shrunk(bytes)) = batch[0].result else { panic!("{:?}", batch[0].result) };
            room.truncate(bytes);
        }
        self.out = self.out.min(began.elapsed());
        self.bytes = rooms.iter().map(Vec::len).sum();
        let mut plain = vec![0; units[0].len()];
        let began = Instant::now();
        for object in &rooms {
            let mut batch = [DecompressRequest::new(object, &mut plain).with(self.place)];
            self.context.decompress(&mut batch);
            assert_eq!(batch[0].result, Ok(()));
        }
        self.back = self.back.min(began.elapsed());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut files = std::env::args().skip(1);
    let memory = std::fs::read(files.next().ok_or("usage: dictionary MEMORY [DICTIONARY]")?)?;
    let given = files.next().map(std::fs::read).transpose()?;
    let windows: Vec<&[u8]> = memory.chunks_exact(WINDOW).collect();
    let pages: Vec<&[u8]> = windows.iter().step_by(2).flat_map(|window| window.chunks_exact(4096)).collect();
    let step = (pages.len() * 4096 / SAMPLES_BYTES).max(1);
    let samples: Vec<u8> = pages.iter().step_by(step).flat_map(|page| page.iter().copied()).collect();
    let began = Instant::now();
    let mut trainer = Trainer::new(samples, 4096, TRAINED_BYTES).ok_or("no memory")?;
    while trainer.step() {}
    let (trained, _) = trainer.finish();
    println!("{} bytes trained in {:?}", trained.len(), began.elapsed());
    let held: Vec<&[u8]> = windows.iter().skip(1).step_by(2).copied().collect();
    for level in [1, 3] {
        for unit_bytes in [4096, WINDOW] {
            let units: Vec<&[u8]> = held.iter().flat_map(|window| window.chunks_exact(unit_bytes)).collect();
            let mut rows = vec![Row::new("none", level, None)?, Row::new("trained", level, Some(&trained))?];
            if let Some(given) = &given {
                rows.push(Row::new("given", level, Some(given))?);
            }
            for _ in 0..ROUNDS {
                rows.iter_mut().for_each(|row| row.round(&units));
            }
            let plain = units.len() * unit_bytes;
            for Row { name, bytes, out, back, .. } in rows {
                let speed = |time: Duration| plain as f64 / time.as_secs_f64() / 1e9;
                println!(
                    "zstd:{level} {:3} KiB {name:8} ratio {:.3}  out {:.3}  in {:.3} GB/s",
                    unit_bytes >> 10,
                    plain as f64 / bytes as f64,
                    speed(out),
                    speed(back)
                );
            }
        }
    }
    Ok(())
}
