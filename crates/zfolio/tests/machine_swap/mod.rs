//! Swap of the machine's, for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A swap file of this test's; the machine swaps to it until this is dropped. Tests take turns: of how much is used the
/// kernel judges by all that there is.
pub struct Swap {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Swap {
    /// So many MiB. It takes root, and a file system that can be swapped to; an error says why there is none.
    pub fn on(mib: u64) -> Result<Swap, String> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("swap-{}", std::process::id()));
        let swap = Swap { path, _turn: turn };
        // Without holes, and for nobody else.
        let script = format!("umask 077 && head -c {mib}M /dev/zero >$0 && mkswap $0 && swapon $0");
        let made = Command::new("sh").args(["-c", &script]).arg(&swap.path).output();
        let made = made.map_err(|e| e.to_string())?;
        if made.status.success() { Ok(swap) } else { Err(String::from_utf8_lossy(&made.stderr).into_owned()) }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.path).output();
        let _ = fs::remove_file(&self.path);
    }
}
