//! As much of the Rust language as the tests need: what is code, what is a comment, where an item ends.

/// A Rust file in two: the code with its comments and the content of its literals blanked out, and the comments with
/// all else blanked out. Both have the lines of the file.
pub struct Parts {
    pub code: String,
    pub comments: String,
}

/// Takes a Rust file apart.
pub fn parts(text: &str) -> Parts {
    let bytes = text.as_bytes();
    let (mut code, mut comments) = (blank(bytes), blank(bytes));
    let mut at = 0;
    while at < bytes.len() {
        let (end, is_comment) = match &bytes[at..] {
            [b'/', b'/', ..] => (line_end(bytes, at), true),
            [b'/', b'*', ..] => (block_end(bytes, at), true),
            [b'"', ..] => (string_end(bytes, at), false),
            [b'r', b'"' | b'#', ..] if !is_in_word(bytes, at) => (raw_end(bytes, at), false),
            [b'\'', ..] => (character_end(bytes, at), false),
            _ => {
                code[at] = bytes[at];
                at += 1;
                continue;
            }
        };
        if is_comment {
            comments[at..end].copy_from_slice(&bytes[at..end]);
        } else if end > at + 1 {
            // The quotes stay, so that two literals are not one.
            (code[at], code[end - 1]) = (bytes[at], bytes[end - 1]);
        } else {
            code[at] = bytes[at];
        }
        at = end;
    }
    let text = |bytes| String::from_utf8(bytes).expect("whole characters are kept or blanked out");
    Parts { code: text(code), comments: text(comments) }
}

/// Blanks and the line ends of a text.
fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect()
}

fn is_in_word(bytes: &[u8], at: usize) -> bool {
    // b"" and c"" may be raw too.
    at > 0
        && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
        && !matches!(bytes[at - 1], b'b' | b'c')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |len| at + len)
}

fn block_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut at) = (0, at);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != b'"' {
        end += 1 + usize::from(bytes[end] == b'\\');
    }
    (end + 1).min(bytes.len())
}

/// `r"..."` or `r##"..."##`; a raw name (`r#type`) is one letter.
fn raw_end(bytes: &[u8], at: usize) -> usize {
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return at + 1;
    }
    let close = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let content = &bytes[open + 1..];
    let len = content.windows(close.len()).position(|end| end == close).unwrap_or(content.len());
    (open + 1 + len + close.len()).min(bytes.len())
}

/// `'x'` or `'\n'`; a lifetime is one letter.
fn character_end(bytes: &[u8], at: usize) -> usize {
    let rest = std::str::from_utf8(&bytes[at + 1..]).unwrap_or_default();
    let mut characters = rest.char_indices();
    match characters.next() {
        Some((_, '\\')) => {
            bytes[at + 3..].iter().position(|byte| *byte == b'\'').map_or(at + 1, |len| at + len + 4)
        }
        Some(_) => match characters.next() {
            Some((len, '\'')) => at + len + 2,
            _ => at + 1,
        },
        None => at + 1,
    }
}

/// The code without what is only there for tests: `#[cfg(test)] mod tests { ... }` and the like.
pub fn without_tests(code: &str) -> String {
    let mut kept = code.to_string();
    while let Some(at) = kept.find("#[cfg(test)]") {
        let end = item_end(&kept, at);
        let lines: String = kept[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(at..end, &lines);
    }
    kept
}

/// Where the item that begins here ends: at its semicolon, or with its braces.
pub fn item_end(code: &str, at: usize) -> usize {
    let mut depth = 0usize;
    for (len, byte) in code.as_bytes()[at..].iter().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && *byte == b'}' {
                    return at + len + 1;
                }
            }
            b';' if depth == 0 => return at + len + 1,
            _ => {}
        }
    }
    code.len()
}

/// Words of letters, digits and `_`, each with where it begins.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + code[at..].find(is_letter)?;
        let end = code[start..].find(|c| !is_letter(c)).map_or(code.len(), |len| start + len);
        at = end;
        Some((start, &code[start..end]))
    })
}

/// The line that a place is in, from 1 on.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// A function that has a body.
pub struct Function<'a> {
    pub name: &'a str,
    /// What stands before the body, from `pub` or the like on.
    pub head: &'a str,
    /// Its first line, from 1 on, and how many it has.
    pub line: usize,
    pub lines: usize,
}

/// All functions that have a body.
pub fn functions(code: &str) -> Vec<Function<'_>> {
    let all: Vec<(usize, &str)> = words(code).collect();
    let named = all.windows(2).filter(|two| two[0].1 == "fn" && two[1].0 == two[0].0 + "fn ".len());
    let function = |at: usize, name| {
        let item = &code[at..item_end(code, at)];
        let line_start = code[..at].rfind('\n').map_or(0, |end| end + 1);
        let head = code[line_start..at + item.find('{')?].trim_start();
        let lines = 1 + item.matches('\n').count();
        item.ends_with('}').then(|| Function { name, head, line: line_of(code, at), lines })
    };
    named.filter_map(|two| function(two[0].0, two[1].1)).collect()
}

#[test]
fn code_and_comments_are_told_apart() {
    let text = r###"let a = "// no \" comment"; // yes "no string"
let b = 'x'; let c = '"'; let d = '\''; fn f<'a>(x: &'a str) {} /* one /* two */ */ let e = 1;
let g = r#"a " // b"#; let h = b"//"; let r#type = br"\"; // end
"###;
    let parts = parts(text);
    let comments: Vec<&str> = parts.comments.lines().map(str::trim).collect();
    assert_eq!(comments, ["// yes \"no string\"", "/* one /* two */ */", "// end"]);
    assert!(parts.code.contains("let e = 1;") && parts.code.contains("fn f<'a>(x: &'a str) {}"));
    assert!(!parts.code.contains("//") && !parts.code.contains("no"), "{}", parts.code);
    assert_eq!(parts.code.lines().count(), text.lines().count());
}

#[test]
fn items_end_where_they_end() {
    let code = "fn a(x: [u8; 3]) -> [u8; 2] {\n if x { y } else { z }\n}\nfn b();\nunsafe fn c() {}\n";
    let found: Vec<_> = functions(code).iter().map(|f| (f.name, f.head, f.line, f.lines)).collect();
    assert_eq!(found, [("a", "fn a(x: [u8; 3]) -> [u8; 2] ", 1, 3), ("c", "unsafe fn c() ", 5, 1)]);
    let kept = without_tests("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n");
    assert_eq!(functions(&kept).iter().map(|f| (f.name, f.line)).collect::<Vec<_>>(), [("a", 1), ("c", 6)]);
}
