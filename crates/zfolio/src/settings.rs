//! What the command line asks of the engines, as they read it in the run's page.

use crate::args::Run;
use crate::kernels;
use memcg::{AREA_FAULTS_BYTES, COMPRESSOR_BYTES, ROOT_BYTES, Settings, Text};
use swap::fate::Faults;
use zswap::Choice;

/// The settings but for the areas. The error is one line for the user.
pub fn settings(args: &Run, with: Choice) -> Result<Settings, String> {
    let name = with.to_string();
    let compressor = Text::new(&name)
        .ok_or_else(|| format!("--compressor {name}: longer than {COMPRESSOR_BYTES} bytes"))?;
    let root = &args.iaa_root;
    let iaa_root =
        Text::new(root).ok_or_else(|| format!("--iaa-root {root}: longer than {ROOT_BYTES} bytes"))?;
    let faults = &args.area_faults;
    faults.parse::<Faults>().map_err(|e| format!("--area-faults {faults}: {e}"))?;
    let area_faults = Text::new(faults)
        .ok_or_else(|| format!("--area-faults {faults}: longer than {AREA_FAULTS_BYTES} bytes"))?;
    let (evict_all, seed) = (args.evict_all.into(), args.seed);
    let (full_timeout_ms, damage_every) = (args.full_timeout_ms, args.damage);
    let (no_turns, stop_when_slow) = (args.no_turns.into(), args.stop_when_slow.unwrap_or(0));
    Ok(Settings {
        compressor,
        iaa_root,
        evict_all,
        seed,
        full_timeout_ms,
        stop_when_slow,
        no_turns,
        no_huge: (!kernels::moves_huge_pages(kernels::running())).into(),
        damage_every,
        area_faults,
        areas: Default::default(),
    })
}
