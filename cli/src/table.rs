//! Tables for people: which columns, in which order, how wide.
//!
//! A table fits its terminal, one line for each item: columns that matter least are left out first,
//! then long texts are cut. Elsewhere, e.g. in a file, everything stands in full width.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{Cell as Shown, CellAlignment, Color, ContentArrangement, Table, presets};
use muster_shared::config::nearest;
use unicode_width::UnicodeWidthStr;

use crate::CliError;
use crate::cell::{Cell, Tone};

/// Between two columns: the preset pads each cell by a blank on both sides.
const GAP: usize = 2;
/// A text is not cut to less than so many characters.
const LEAST: usize = 8;

/// A column of a list: its heading, and what of an item stands in it.
#[derive(Debug)]
pub(crate) struct Column<T> {
    heading: &'static str,
    cell: fn(&T) -> Cell,
    /// Left out in terminals without room: the highest first. 0: never.
    spare: u8,
    /// Only shown if asked for, or with `-o wide`.
    wide: bool,
    /// Its texts may be cut.
    cut: bool,
}

impl<T> Clone for Column<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Column<T> {}

impl<T> Column<T> {
    /// One that is always shown.
    pub(crate) const fn new(heading: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { heading, cell, spare: 0, wide: false, cut: false }
    }

    /// Where there is no room it is left out, before those of a lower rank.
    pub(crate) const fn spare(self, rank: u8) -> Self {
        Self { spare: rank, ..self }
    }

    /// Only shown if asked for, or with `-o wide`.
    pub(crate) const fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    /// Its texts may be cut.
    pub(crate) const fn cut(self) -> Self {
        Self { cut: true, ..self }
    }

    /// What stands in it.
    #[cfg(test)]
    pub(crate) fn of(&self, item: &T) -> Cell {
        (self.cell)(item)
    }

    /// Its name in arguments.
    fn key(&self) -> String {
        self.heading.to_lowercase().replace(' ', "-")
    }
}

/// What a person wants of a list.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "List")]
pub(crate) struct ListArgs {
    /// Columns to show, e.g. `name,state`; any of `-o wide` too.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,

    /// Column to sort by; `-NAME` sorts in descending order.
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,

    /// Only items whose column has this value, or with `!=` has not. `*` matches any text. May be
    /// repeated.
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub(crate) filter: Vec<String>,

    /// Prints only ids.
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Refreshes the list every 2 seconds, until Ctrl-C.
    #[arg(long, short)]
    pub(crate) watch: bool,
}

/// How wide a table may be, and whether it may have colours.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) width: Option<usize>,
    pub(crate) colour: bool,
    /// All columns, and ids in full.
    pub(crate) wide: bool,
}

/// Selects and sorts.
pub(crate) fn selected<T>(
    items: Vec<T>,
    columns: &[Column<T>],
    args: &ListArgs,
) -> Result<Vec<T>, CliError> {
    let mut items = items;
    for filter in &args.filter {
        let (key, value, wanted) = parsed(filter)?;
        let column = find(columns, key)?;
        items.retain(|item| fits(&(column.cell)(item), value) == wanted);
    }
    if let Some(sort) = &args.sort {
        let (key, reverse) = match sort.strip_prefix('-') {
            Some(key) => (key, true),
            None => (sort.as_str(), false),
        };
        let column = find(columns, key)?;
        items.sort_by(|one, other| {
            let (one, other) = ((column.cell)(one), (column.cell)(other));
            let order = order(&one, &other);
            if reverse { order.reverse() } else { order }
        });
    }
    Ok(items)
}

/// The key, the value, and whether it has to be that or must not be.
fn parsed(filter: &str) -> Result<(&str, &str, bool), CliError> {
    let pair = filter.split_once("!=").map(|(key, value)| (key, value, false));
    let pair = pair.or_else(|| filter.split_once('=').map(|(key, value)| (key, value, true)));
    pair.filter(|(key, ..)| !key.is_empty()).ok_or_else(|| {
        CliError::Usage(format!("--filter {filter}: expected COLUMN=VALUE or COLUMN!=VALUE"))
    })
}

fn find<'a, T>(columns: &'a [Column<T>], key: &str) -> Result<&'a Column<T>, CliError> {
    let wanted = key.trim().to_lowercase();
    columns.iter().find(|column| column.key() == wanted).ok_or_else(|| {
        let keys: Vec<String> = columns.iter().map(Column::key).collect();
        let meant = nearest(&wanted, keys.iter().map(String::as_str));
        let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        CliError::Usage(format!(
            "no column is named {key:?}{meant} (there are: {})",
            keys.join(", ")
        ))
    })
}

fn fits(cell: &Cell, wanted: &str) -> bool {
    [cell.text.as_str(), cell.full()].into_iter().any(|text| matches(text, wanted))
}

/// Whether a text is as a pattern says, in which `*` stands for any text. Case does not matter.
fn matches(text: &str, pattern: &str) -> bool {
    let (text, pattern) = (text.to_lowercase(), pattern.to_lowercase());
    let Some((start, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(end)
}

fn order(one: &Cell, other: &Cell) -> Ordering {
    match (one.rank, other.rank) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        // What is not known comes last.
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.full().cmp(other.full()),
    }
}

/// The table's text.
pub(crate) fn drawn<T>(
    items: &[T],
    columns: &[Column<T>],
    args: &ListArgs,
    room: Room,
) -> Result<String, CliError> {
    let columns: Vec<Column<T>> = if args.columns.is_empty() {
        columns.iter().filter(|column| room.wide || !column.wide).copied().collect()
    } else {
        // What was asked for is never left out.
        let asked = args.columns.iter().map(|key| find(columns, key).map(|c| c.spare(0)));
        asked.collect::<Result<_, _>>()?
    };
    let cells = |item: &T| {
        let cells = columns.iter().map(|column| (column.cell)(item));
        cells.map(|cell| if room.wide { widened(cell) } else { cell }).collect()
    };
    let mut rows: Vec<Vec<Cell>> = items.iter().map(cells).collect();
    for column in 0..columns.len() {
        tell_apart(&mut rows, column);
    }
    Ok(lines(&columns, &rows, room))
}

/// Ids that look alike when they are cut short stand in full.
fn tell_apart(rows: &mut [Vec<Cell>], column: usize) {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut alike = BTreeSet::new();
    for cell in rows.iter().map(|cells| &cells[column]).filter(|cell| cell.rank.is_none()) {
        let whole = cell.full().to_owned();
        let first = seen.entry(cell.text.clone()).or_insert_with(|| whole.clone());
        if *first != whole {
            alike.insert(cell.text.clone());
        }
    }
    for cell in rows.iter_mut().map(|cells| &mut cells[column]) {
        if alike.contains(&cell.text) {
            *cell = widened(std::mem::take(cell));
        }
    }
}

/// An id in full; other cells as they are.
fn widened(mut cell: Cell) -> Cell {
    if let Some(whole) = cell.whole.take_if(|_| cell.rank.is_none()) {
        cell.text = whole;
    }
    cell
}

fn lines<T>(columns: &[Column<T>], rows: &[Vec<Cell>], room: Room) -> String {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let mut widths: Vec<usize> = (0..columns.len()).map(|at| width(columns, rows, at)).collect();
    if let Some(most) = room.width {
        // Blanks that are coloured stay at both ends of a line.
        let blanks = if room.colour { GAP } else { 0 };
        fit(columns, &mut shown, &mut widths, most.saturating_sub(blanks));
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if room.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let head = |at: &usize| {
        let right = rows.first().is_some_and(|cells| cells[*at].right);
        aligned(Shown::new(shortened(columns[*at].heading, widths[*at])), right)
    };
    table.set_header(shown.iter().map(head).collect::<Vec<_>>());
    for cells in rows {
        table.add_row(shown.iter().map(|at| styled(&cells[*at], widths[*at])).collect::<Vec<_>>());
    }
    let line = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The width of a column in which nothing is cut.
fn width<T>(columns: &[Column<T>], rows: &[Vec<Cell>], at: usize) -> usize {
    let texts = rows.iter().map(|cells| cells[at].text.as_str());
    let widths = texts.chain([columns[at].heading]).map(UnicodeWidthStr::width);
    widths.max().unwrap_or(0)
}

/// Leaves columns out and narrows others until all is within so many characters.
fn fit<T>(columns: &[Column<T>], shown: &mut Vec<usize>, widths: &mut [usize], most: usize) {
    let total = |shown: &[usize], widths: &[usize]| {
        let texts: usize = shown.iter().map(|at| widths[*at]).sum();
        texts + GAP * shown.len().saturating_sub(1)
    };
    let narrowest = |shown: &[usize], widths: &[usize]| {
        let least =
            |at: &usize| if columns[*at].cut { widths[*at].min(LEAST) } else { widths[*at] };
        let texts: usize = shown.iter().map(least).sum();
        texts + GAP * shown.len().saturating_sub(1)
    };
    while narrowest(shown, widths) > most {
        let spare = shown.iter().enumerate().max_by_key(|(_, at)| columns[**at].spare);
        match spare.filter(|(_, at)| columns[**at].spare > 0).map(|(place, _)| place) {
            Some(place) => drop(shown.remove(place)),
            None => break,
        }
    }
    // The widest gives way first.
    while total(shown, widths) > most {
        let cuttable = shown.iter().filter(|at| columns[**at].cut && widths[**at] > LEAST);
        match cuttable.max_by_key(|at| widths[**at]) {
            Some(at) => widths[*at] -= 1,
            None => break,
        }
    }
}

fn aligned(cell: Shown, right: bool) -> Shown {
    if right { cell.set_alignment(CellAlignment::Right) } else { cell }
}

fn styled(cell: &Cell, width: usize) -> Shown {
    let shown = aligned(Shown::new(shortened(&cell.text, width)), cell.right);
    match cell.tone {
        Tone::Plain => shown,
        Tone::Good => shown.fg(Color::Green),
        Tone::Busy => shown.fg(Color::Yellow),
        Tone::Bad => shown.fg(Color::Red),
        Tone::Faint => shown.fg(Color::DarkGrey),
    }
}

/// At most so many characters wide; `…` stands for what was cut.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if short.width() >= most {
            short.pop();
            break;
        }
    }
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Item = (&'static str, &'static str, u64);

    const COLUMNS: &[Column<Item>] = &[
        Column::new("NAME", |item: &Item| Cell::text(item.0)).cut(),
        Column::new("STATE", |item: &Item| Cell::state(item.1)),
        Column::new("RAM", |item: &Item| Cell::mib(Some(item.2))).spare(1),
        Column::new("FULL ID", |_: &Item| Cell::id(&"e5a32d94-1111")).wide(),
    ];
    const ITEMS: [Item; 3] =
        [("web-1", "running", 512), ("database", "stopped", 2048), ("a", "failed", 64)];

    fn args(words: &[&str]) -> ListArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            list: ListArgs,
        }
        let line = [&["list"], words].concat();
        <Line as clap::Parser>::try_parse_from(line).unwrap().list
    }

    fn names(words: &[&str]) -> Vec<&'static str> {
        let items = selected(ITEMS.to_vec(), COLUMNS, &args(words)).unwrap();
        items.into_iter().map(|item| item.0).collect()
    }

    #[test]
    fn plain_columns_numbers_at_the_right() {
        let text = drawn(&ITEMS, COLUMNS, &args(&[]), Room::default()).unwrap();
        let want = "NAME      STATE        RAM\n\
                    web-1     running  512 MiB\n\
                    database  stopped    2 GiB\n\
                    a         failed    64 MiB";
        assert_eq!(text, want);
        let wide = Room { wide: true, ..Room::default() };
        let text = drawn(&ITEMS, COLUMNS, &args(&[]), wide).unwrap();
        assert!(text.contains("FULL ID") && text.contains("e5a32d94-1111"), "{text}");
    }

    #[test]
    fn items_are_selected_and_sorted_by_what_they_are() {
        assert_eq!(names(&["--sort", "ram"]), ["a", "web-1", "database"]);
        assert_eq!(names(&["--sort", "-ram"]), ["database", "web-1", "a"]);
        assert_eq!(names(&["--sort", "name"]), ["a", "database", "web-1"]);
        assert_eq!(names(&["--filter", "state=running"]), ["web-1"]);
        assert_eq!(names(&["--filter", "state!=running"]), ["database", "a"]);
        assert_eq!(names(&["--filter", "name=*A*", "--filter", "state=*ed"]), ["database", "a"]);
        assert_eq!(names(&["--filter", "full-id=e5a32d94-1111"]).len(), 3);
        assert_eq!(names(&["--filter", "name=a*b"]), Vec::<&str>::new());
    }

    #[test]
    fn ids_that_look_alike_stand_in_full() {
        let columns = [Column::new("ID", |id: &&str| Cell::id(id))];
        let ids = ["aaaaaaaa-1", "aaaaaaaa-2", "bbbbbbbb-3", "bbbbbbbb-3"];
        let text = drawn(&ids, &columns, &args(&[]), Room::default()).unwrap();
        assert_eq!(text, "ID\naaaaaaaa-1\naaaaaaaa-2\nbbbbbbbb\nbbbbbbbb");
    }

    #[test]
    fn columns_are_chosen_and_wrong_ones_named() {
        let text = drawn(&ITEMS, COLUMNS, &args(&["--columns", "state,name"]), Room::default());
        assert!(text.unwrap().starts_with("STATE    NAME\nrunning  web-1"));
        let wrong = drawn(&ITEMS, COLUMNS, &args(&["--columns", "stat"]), Room::default());
        let wrong = wrong.unwrap_err();
        assert_eq!(wrong.exit_code(), 2);
        assert!(wrong.to_string().contains("did you mean state?"), "{wrong}");
        for bad in [["--sort", "size"], ["--filter", "running"], ["--filter", "x=y"]] {
            selected(ITEMS.to_vec(), COLUMNS, &args(&bad)).unwrap_err();
        }
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_then_shorter_texts() {
        let room = |width| Room { width: Some(width), ..Room::default() };
        let text = drawn(&ITEMS, COLUMNS, &args(&[]), room(20)).unwrap();
        assert!(!text.contains("RAM") && text.contains("database"), "{text}");
        let long = [("a-rather-long-name-of-a-machine", "running", 1)];
        let text = drawn(&long, COLUMNS, &args(&[]), room(30)).unwrap();
        assert_eq!(text.lines().nth(1), Some("a-rather-long…  running  1 MiB"), "{text}");
    }

    #[test]
    fn colours_take_no_room_of_the_next_line() {
        let visible = |line: &str| {
            let parts = line.split('\u{1b}').enumerate();
            let text = |(at, part): (usize, &str)| match (at, part.split_once('m')) {
                (0, _) | (_, None) => part.to_owned(),
                (_, Some((_, text))) => text.to_owned(),
            };
            parts.map(text).collect::<String>().width()
        };
        let columns = [COLUMNS[1], COLUMNS[0], COLUMNS[1]];
        for width in 28..60 {
            let room = Room { width: Some(width), colour: true, wide: false };
            let text = drawn(&ITEMS, &columns, &args(&[]), room).unwrap();
            assert!(text.lines().all(|line| visible(line) <= width), "{width}: {text:?}");
        }
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        let room = Room { colour: true, ..Room::default() };
        let text = drawn(&ITEMS, COLUMNS, &args(&[]), room).unwrap();
        assert!(text.contains("\u{1b}["), "{text:?}");
        let text = drawn(&ITEMS, COLUMNS, &args(&[]), Room::default()).unwrap();
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    proptest! {
        /// One line for each item, and none is wider than the terminal.
        #[test]
        fn no_line_wraps(names in proptest::collection::vec(".{0,60}", 0..6), width in 25_usize..90) {
            let columns: &[Column<String>] = &[
                Column::new("NAME", |name: &String| Cell::text(name)).cut(),
                Column::new("SIZE", |name: &String| Cell::bytes(Some(name.len() as u64))),
                Column::new("AGAIN", |name: &String| Cell::text(name)).cut().spare(2),
            ];
            let room = Room { width: Some(width), colour: false, wide: false };
            let text = drawn(&names, columns, &ListArgs::default(), room).unwrap();
            prop_assert_eq!(text.lines().count(), names.len() + 1);
            for line in text.lines() {
                let wide = UnicodeWidthStr::width(line);
                prop_assert!(wide <= width, "{} > {}: {:?}", wide, width, line);
            }
        }
    }
}
