//! A large C file: many functions with loops, switches, tables and calls of each other.

use crate::text::Text;
use std::io::{self, Write};

/// Writes a translation unit of `functions` functions.
pub fn write(out: &mut impl Write, functions: u64) -> io::Result<()> {
    let mut text = Text::new(3);
    writeln!(
        out,
        "struct row {{ long a, b; double c; const char *d; struct row *e; }};\nextern long sink(long);"
    )?;
    for number in 0..functions {
        let called = text.below(number.max(1));
        let call = if number == 0 { "t".into() } else { format!("f{called}(p, n - 1, r)") };
        let [seed, factor, take, stop] = [32, 20, 16, 10].map(|bits| text.below(1 << bits));
        let (mask, shift) = (1 << text.below(20), 1 + text.below(30));
        let note = text.sentence(4);
        write!(
            out,
            "long f{number}(long *p, long n, struct row *r) {{
  static const long table{number}[] = {{ {factor}, {take}, {stop}, {shift}, {seed} }};
  long s = {seed}, t = n;
  for (long i = 0; i < n; i++) {{
    s += p[i] * {factor} + r[i].a + table{number}[i % 5];
    if (s & {mask}) t ^= s >> {shift}; else r[i].b = t - {take};
    switch (s % 5) {{
      case 0: t += sink(t); break;
      case 1: s = s * 3 + t; break;
      case 2: r[i].c *= 1.5; break;
      default: p[i] = s;
    }}
  }}
  while (t > {stop}) {{ t /= 3; s += {call}; r[t & 7].d = \"{note} {number}\"; }}
  return s + t;
}}
"
        )?;
    }
    Ok(())
}
