//! The drawing: for each unit the ratio over the speed out, with the front as a line. All panels have the same scales.
//!
//! Colours are those of a light page; a viewer that prefers dark ones, and knows style sheets, takes the dark ones.

use super::table::{Report, by_unit, point, unit_name};
use std::fmt::{self, Write};

/// A panel's area for points, in pixels, and what is around it: room for the scale to the left and below, for the title
/// above.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 24.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 46.0;

/// Room above all panels, for what it is about.
const HEAD: f64 = 58.0;

/// Panels beside each other.
const COLUMNS: usize = 2;

/// A line of a label, in pixels, and about how wide one of its letters is.
const LINE: f64 = 12.0;
const LETTER: f64 = 6.4;

/// Some viewers know no `sans-serif`, and write nothing without a font that is there.
const FONTS: &str = "system-ui, 'DejaVu Sans', 'Liberation Sans', Arial, sans-serif";

/// Light colours stand in the elements, dark ones here.
const STYLE: &str = "\
@media (prefers-color-scheme: dark) {
  .page { fill: #15181c } .text { fill: #e6e8ea } .dim { fill: #a3abb3 } .grid { stroke: #333a41 }
  .line { stroke: #5fb0f5 } .on { fill: #5fb0f5; stroke: #5fb0f5 } .off { fill: #15181c; stroke: #a3abb3 }
}";

/// The drawing as SVG.
pub fn svg(report: &Report) -> String {
    let mut svg = String::new();
    write_svg(report, &mut svg).expect("a String takes all");
    svg
}

fn write_svg(report: &Report, out: &mut String) -> fmt::Result {
    let scales = Scales::of(report);
    let count = by_unit(&report.rows).count();
    let columns = count.min(COLUMNS);
    let width = columns as f64 * (LEFT + WIDTH + RIGHT);
    let height = HEAD + count.div_ceil(columns) as f64 * (ABOVE + HEIGHT + BELOW);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"{FONTS}\" font-size=\"11\">\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"
    )?;
    let title = clip(&report.source, ((width - 2.0 * LEFT) / LETTER / 1.35) as usize);
    text(out, LEFT, 26.0, "class=\"text\" fill=\"#1b1f23\" font-size=\"16\"", &title)?;
    let key = "ratio over speed out, on one processor; filled: nothing else is both denser and faster";
    text(out, LEFT, 44.0, "class=\"dim\" fill=\"#57606a\"", &clip(key, ((width - LEFT) / 5.4) as usize))?;
    let mut on_front = report.on_front.iter().copied();
    for (index, rows) in by_unit(&report.rows).enumerate() {
        let x = (index % columns) as f64 * (LEFT + WIDTH + RIGHT) + LEFT;
        let y = HEAD + (index / columns) as f64 * (ABOVE + HEIGHT + BELOW) + ABOVE;
        writeln!(out, "<g transform=\"translate({x} {y})\">")?;
        let unit = format!("units of {}", unit_name(rows[0].unit_bytes));
        text(out, 0.0, -12.0, "class=\"text\" fill=\"#1b1f23\" font-size=\"13\"", &unit)?;
        scales.write(out)?;
        let dots: Vec<Dot> = rows
            .iter()
            .map(|row| {
                let (x, y) = (scales.x(point(row).speed), scales.y(point(row).ratio));
                Dot { x, y, is_on: on_front.next() == Some(true), name: row.compressor.to_string() }
            })
            .collect();
        write_dots(&dots, out)?;
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</svg>")
}

/// A compressor in its panel.
struct Dot {
    x: f64,
    y: f64,
    is_on: bool,
    name: String,
}

/// The front, from the fastest to the densest, the dots upon it, and their names where they do not cover each other.
fn write_dots(dots: &[Dot], out: &mut String) -> fmt::Result {
    let mut front: Vec<&Dot> = dots.iter().filter(|dot| dot.is_on).collect();
    front.sort_by(|a, b| a.x.total_cmp(&b.x));
    let path: Vec<String> = front.iter().map(|dot| format!("{:.1},{:.1}", dot.x, dot.y)).collect();
    writeln!(
        out,
        "<polyline class=\"line\" points=\"{}\" fill=\"none\" stroke=\"#0969da\" stroke-width=\"1.5\"/>",
        path.join(" ")
    )?;
    for dot in dots {
        let (class, fill, stroke) =
            if dot.is_on { ("on", "#0969da", "#0969da") } else { ("off", "#ffffff", "#57606a") };
        writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>",
            dot.x, dot.y
        )?;
    }
    for (dot, (x, y)) in dots.iter().zip(places(dots, &front)) {
        let class =
            if dot.is_on { "class=\"text\" fill=\"#1b1f23\"" } else { "class=\"dim\" fill=\"#57606a\"" };
        text(out, x, y, class, &dot.name)?;
    }
    Ok(())
}

/// Where the names go: beside their dots, and clear of dots, of the front and of the names before them, as far as there
/// is a place.
fn places(dots: &[Dot], front: &[&Dot]) -> Vec<(f64, f64)> {
    let mut taken: Vec<[f64; 4]> =
        dots.iter().map(|dot| [dot.x - 5.0, dot.y - 5.0, dot.x + 5.0, dot.y + 5.0]).collect();
    for pair in front.windows(2) {
        let [a, b] = [pair[0], pair[1]];
        // The line as a row of points, close enough that no name fits between.
        let count = ((b.x - a.x).hypot(b.y - a.y) / 4.0).ceil();
        taken.extend((0..count as usize).map(|index| {
            let part = index as f64 / count;
            let (x, y) = (a.x + (b.x - a.x) * part, a.y + (b.y - a.y) * part);
            [x - 1.0, y - 1.0, x + 1.0, y + 1.0]
        }));
    }
    let mut places = Vec::new();
    for dot in dots {
        let width = dot.name.len() as f64 * LETTER;
        let (right, left, middle) = (dot.x + 8.0, dot.x - 8.0 - width, dot.x - width / 2.0);
        // The text's baseline is at y, and its letters above it.
        let beside = dot.y + 4.0;
        let tries = [(right, beside), (left, beside), (middle, dot.y - 8.0), (middle, dot.y + 16.0)];
        let further = [-10.0, 14.0, -22.0, 26.0].map(|dy| [(right, beside + dy), (left, beside + dy)]);
        let tries = tries.into_iter().chain(further.into_iter().flatten());
        let space = |(x, y): (f64, f64)| [x, y - LINE + 2.0, x + width, y + 2.0];
        let is_free = |place: &(f64, f64)| {
            let own = space(*place);
            let is_inside = own[0] >= 0.0 && own[2] <= WIDTH + RIGHT && own[1] >= -4.0 && own[3] <= HEIGHT;
            let covers = |other: &[f64; 4]| {
                own[0] < other[2] && other[0] < own[2] && own[1] < other[3] && other[1] < own[3]
            };
            is_inside && !taken.iter().any(covers)
        };
        let place = tries.into_iter().find(is_free).unwrap_or((right, beside));
        taken.push(space(place));
        places.push(place);
    }
    places
}

/// The scales that all panels have: speeds by their logarithm, ratios as they are.
struct Scales {
    speed: [f64; 2],
    ratio: [f64; 2],
}

impl Scales {
    fn of(report: &Report) -> Scales {
        let points: Vec<_> = report.rows.iter().map(point).collect();
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let speeds = [
            least(&mut points.iter().map(|p| p.speed)) / 1.3,
            most(&mut points.iter().map(|p| p.speed)) * 1.5,
        ];
        let ratios = [least(&mut points.iter().map(|p| p.ratio)), most(&mut points.iter().map(|p| p.ratio))];
        // Where all are alike there is still something between the ends.
        let room = ((ratios[1] - ratios[0]) * 0.08).max(0.05);
        Scales { speed: speeds, ratio: [(ratios[0] - room).max(0.0), ratios[1] + room] }
    }

    fn x(&self, speed: f64) -> f64 {
        (speed / self.speed[0]).ln() / (self.speed[1] / self.speed[0]).ln() * WIDTH
    }

    fn y(&self, ratio: f64) -> f64 {
        HEIGHT - (ratio - self.ratio[0]) / (self.ratio[1] - self.ratio[0]) * HEIGHT
    }

    /// Lines and numbers.
    fn write(&self, out: &mut String) -> fmt::Result {
        let line = |out: &mut String, [x1, y1, x2, y2]: [f64; 4]| {
            writeln!(
                out,
                "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#d8dee4\"/>"
            )
        };
        let dim = |anchor: &str| format!("class=\"dim\" fill=\"#57606a\" text-anchor=\"{anchor}\"");
        for speed in ticks_by_logarithm(self.speed) {
            let x = self.x(speed);
            line(out, [x, 0.0, x, HEIGHT])?;
            text(out, x, HEIGHT + 15.0, &dim("middle"), &number(speed / 1e9))?;
        }
        for ratio in ticks(self.ratio) {
            let y = self.y(ratio);
            line(out, [0.0, y, WIDTH, y])?;
            text(out, -7.0, y + 4.0, &dim("end"), &number(ratio))?;
        }
        text(out, WIDTH, HEIGHT + 30.0, &dim("end"), "GB/s out")?;
        text(out, -7.0, -12.0, &dim("end"), "ratio")
    }
}

/// 1, 2 and 5 times the powers of ten within a range.
fn ticks_by_logarithm([from, to]: [f64; 2]) -> Vec<f64> {
    let powers = (from.log10().floor() as i32)..=(to.log10().ceil() as i32);
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10f64.powi(power)));
    all.filter(|tick| (from..=to).contains(tick)).collect()
}

/// Round numbers within a range, four to ten of them.
fn ticks([from, to]: [f64; 2]) -> Vec<f64> {
    let rough = (to - from) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (from / step).ceil() as i64;
    (first..).map(|index| index as f64 * step).take_while(|tick| *tick <= to).collect()
}

/// A number without zeros that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn clip(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        text.to_string()
    } else {
        text.chars().take(letters - 3).chain("...".chars()).collect()
    }
}

fn text(out: &mut String, x: f64, y: f64, attributes: &str, text: &str) -> fmt::Result {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_within_the_range() {
        assert_eq!(ticks([1.1, 4.3]), [2.0, 3.0, 4.0]);
        assert_eq!(
            ticks([2.45, 2.55]).iter().map(|tick| number(*tick)).collect::<Vec<_>>(),
            ["2.46", "2.48", "2.5", "2.52", "2.54"]
        );
        assert_eq!(
            ticks_by_logarithm([0.04, 2.5]).iter().map(|tick| number(*tick)).collect::<Vec<_>>(),
            ["0.05", "0.1", "0.2", "0.5", "1", "2"]
        );
    }

    #[test]
    fn a_name_stands_clear_of_the_front() {
        let dot = |x, y| Dot { x, y, is_on: true, name: "zstd:9".to_string() };
        let dots = [dot(10.0, 50.0), dot(250.0, 60.0)];
        assert_eq!(places(&dots, &[])[0], (18.0, 54.0));
        let (_, y) = places(&dots, &[&dots[0], &dots[1]])[0];
        assert!(!(48.0..64.0).contains(&y), "{y}");
    }

    #[test]
    fn names_do_not_cover_each_other() {
        let dot = |x, y, name: &str| Dot { x, y, is_on: true, name: name.to_string() };
        let dots = [
            dot(100.0, 100.0, "lzo"),
            dot(102.0, 101.0, "lzo-rle"),
            dot(375.0, 100.0, "zstd:-1"),
            dot(101.0, 99.0, "lz4:1"),
        ];
        let places = places(&dots, &[]);
        // One that has no room to the right stands to the left.
        assert!(places[2].0 < 375.0 - 7.0 * LETTER);
        for (index, place) in places.iter().enumerate() {
            for (other, width) in places[..index].iter().zip(&dots) {
                let is_apart = (place.1 - other.1).abs() >= LINE
                    || place.0 >= other.0 + width.name.len() as f64 * LETTER
                    || other.0 > place.0;
                assert!(is_apart, "{places:?}");
            }
        }
    }
}
