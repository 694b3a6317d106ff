//! Where a device tells what nobody asked for.

use std::sync::Arc;

/// Where lines for the user go.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;
