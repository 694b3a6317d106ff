//! `zfolio zram list`: a line for each device, in the columns of zramctl.

use super::client;
use crate::lines::{cut, printable};
use crate::out;
use crate::size::Bytes;
use serde_json::{Value, json};
use std::time::Duration;
use zram_server::place;

/// How long a device may take to answer.
const ANSWERS: Duration = Duration::from_secs(5);

/// What is above the columns.
const TITLES: [&str; 9] =
    ["NAME", "ALGORITHM", "DISKSIZE", "DATA", "COMPR", "TOTAL", "CLIENTS", "PID", "FRONT-ENDS"];

/// Columns of each but the last.
const WIDTHS: [usize; 8] = [7, 11, 8, 6, 6, 6, 7, 7];

/// Lists the devices of this user; the exit status.
pub fn run(is_json: bool) -> u8 {
    let mut devices = Vec::new();
    for (number, socket) in place::all() {
        let answer = client::ask(number, &socket, &json!({ "do": "list" }), ANSWERS);
        // One that is another user's, or has just ended, is none of ours.
        let Ok(answer) = answer else { continue };
        devices.extend(answer.lines.first().and_then(|line| serde_json::from_str::<Value>(line).ok()));
    }
    let text = match is_json {
        true => format!("{}\n", json!({ "schema": 1, "zram": devices })),
        false => table(&devices, out::width()),
    };
    out::show_with(&text, 0)
}

/// The lines, of so many columns at most.
fn table(devices: &[Value], columns: usize) -> String {
    let titles = line(TITLES.map(str::to_string));
    [titles].into_iter().chain(devices.iter().map(row)).map(|line| cut(&line, columns) + "\n").collect()
}

fn row(device: &Value) -> String {
    let number = |name: &str| device[name].as_u64().unwrap_or(0);
    let size = |name: &str| format!("{:#}", Bytes(number(name)));
    let front_ends = device["front_ends"].as_array().into_iter().flatten().filter_map(Value::as_str);
    line([
        format!("zram{}", number("number")),
        printable(device["algorithm"].as_str().unwrap_or("-")),
        size("disksize_bytes"),
        size("orig_data_bytes"),
        size("compr_data_bytes"),
        size("mem_used_bytes"),
        number("clients").to_string(),
        number("pid").to_string(),
        front_ends.map(printable).collect::<Vec<_>>().join(" "),
    ])
}

/// Names to the left, figures to the right.
fn line(cells: [String; 9]) -> String {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        match at {
            0 | 1 => line += &format!("{cell:<width$} "),
            _ => line += &format!("{cell:>width$} "),
        }
    }
    line + &cells[WIDTHS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_line_below_its_titles() {
        let device = json!({
            "number": 0, "pid": 4711, "algorithm": "zstd", "disksize_bytes": 4u64 << 30, "orig_data_bytes": 1 << 20,
            "compr_data_bytes": 400 << 10, "mem_used_bytes": 512 << 10, "clients": 2,
            "front_ends": ["nbd://127.0.0.1:10809", "vhost-user:/a"],
        });
        let text = table(std::slice::from_ref(&device), usize::MAX);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME    ALGORITHM   DISKSIZE   DATA  COMPR  TOTAL CLIENTS     PID FRONT-ENDS");
        assert!(lines[1].starts_with("zram0   zstd "), "{text}");
        assert!(lines[1].ends_with("      2    4711 nbd://127.0.0.1:10809 vhost-user:/a"), "{text}");
        assert!(WIDTHS.iter().zip(TITLES).all(|(width, title)| title.len() <= *width));
        assert!(acomp::Compressor::ALL.iter().all(|algorithm| algorithm.name.len() <= WIDTHS[1]));
        let cut = table(&[device], 44);
        assert!(cut.lines().count() == 2 && cut.lines().all(|line| line.chars().count() == 44), "{cut}");
    }
}
