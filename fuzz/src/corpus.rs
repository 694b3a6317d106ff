//! What the fuzzer has kept, for the tests that try it again.

/// The inputs that were kept for a target: each lies behind its length in two bytes.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let packed = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut rest = &packed[..];
    let mut inputs = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (input, behind) = behind.split_at(u16::from_le_bytes(*length) as usize);
        inputs.push(input.to_vec());
        rest = behind;
    }
    assert!(rest.is_empty() && inputs.len() > 20, "{path}: {} inputs", inputs.len());
    inputs
}
