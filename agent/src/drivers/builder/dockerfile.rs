//! What a Dockerfile says before it is built: which images it begins with (pure).

use std::collections::{BTreeMap, BTreeSet};

/// Most images that one Dockerfile may begin with.
const MAX_BASES: usize = 16;
/// Instructions that change how an image is run, and no file of it.
const OF_CONFIGURATION: [&str; 12] = [
    "CMD",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "WORKDIR",
];
/// The image without files.
const SCRATCH: &str = "scratch";

/// The names of the images that a Dockerfile needs: those of `FROM`, and of `--from` of a `COPY` or a
/// mount. Variables in them are replaced by what `ARG` before the first `FROM` or `args` say.
///
/// # Errors
/// There are too many.
pub fn bases(text: &str, args: &BTreeMap<String, String>) -> Result<BTreeSet<String>, String> {
    let (mut found, mut stages) = (BTreeSet::new(), BTreeSet::new());
    let mut known = BTreeMap::new();
    let mut has_begun = false;
    for line in instructions(text) {
        let mut words = line.split_whitespace();
        let instruction = words.next().unwrap_or_default().to_ascii_uppercase();
        let words: Vec<&str> = words.collect();
        match instruction.as_str() {
            "ARG" if !has_begun => {
                for word in words {
                    let (name, unsaid) = word.split_once('=').unwrap_or((word, ""));
                    let said = args.get(name).map_or(unquoted(unsaid), String::as_str);
                    known.insert(name.to_owned(), said.to_owned());
                }
            }
            "FROM" => {
                has_begun = true;
                let mut words = words.into_iter().skip_while(|word| word.starts_with("--"));
                let name = replaced(words.next().unwrap_or_default(), &known);
                if name != SCRATCH && !name.is_empty() && !stages.contains(&name) {
                    found.insert(name);
                }
                if words.next().is_some_and(|word| word.eq_ignore_ascii_case("AS")) {
                    stages.extend(words.next().map(str::to_lowercase));
                }
            }
            "COPY" | "ADD" | "RUN" => {
                let options = words.iter().take_while(|word| word.starts_with("--"));
                let named = options.filter_map(|word| from_of(word));
                let named = named.map(|name| replaced(name, &known));
                let is_image = |name: &String| {
                    !stages.contains(&name.to_lowercase()) && name.parse::<u32>().is_err()
                };
                found.extend(named.filter(|name| !name.is_empty()).filter(is_image));
            }
            _ => {}
        }
    }
    if found.len() > MAX_BASES {
        return Err(format!("it begins with more than {MAX_BASES} images"));
    }
    Ok(found)
}

/// What `--from=NAME` or `--mount=…,from=NAME` names.
fn from_of(option: &str) -> Option<&str> {
    match option.strip_prefix("--from=") {
        Some(name) => Some(unquoted(name)),
        None => option
            .strip_prefix("--mount=")?
            .split(',')
            .find_map(|part| part.strip_prefix("from="))
            .map(unquoted),
    }
}

/// Whether an instruction of a commit changes no file.
///
/// # Errors
/// Why it can't be one.
pub fn check_change(line: &str) -> Result<(), String> {
    let instruction = line.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    let fits =
        OF_CONFIGURATION.contains(&instruction.as_str()) && !line.contains(['\n', '\r', '\0']);
    match fits {
        true => Ok(()),
        false => Err(format!("must be one of {}, on one line", OF_CONFIGURATION.join(", "))),
    }
}

/// Lines that are no comments, those that end with a backslash together with the next one.
fn instructions(text: &str) -> Vec<String> {
    let (mut found, mut current) = (Vec::new(), String::new());
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('#') || (line.is_empty() && current.is_empty()) {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                current.push_str(part);
                current.push(' ');
            }
            None => {
                current.push_str(line);
                found.push(std::mem::take(&mut current));
            }
        }
    }
    if !current.is_empty() {
        found.push(current);
    }
    found
}

fn unquoted(text: &str) -> &str {
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    quoted('"').or_else(|| quoted('\'')).unwrap_or(text)
}

/// `$NAME`, `${NAME}` and `${NAME:-other}` replaced; of what is not known nothing is left.
fn replaced(text: &str, known: &BTreeMap<String, String>) -> String {
    let text = unquoted(text);
    let (mut made, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        made.push_str(before);
        let (expression, left) = match after.strip_prefix('{').and_then(|it| it.split_once('}')) {
            Some(found) => found,
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
            }
        };
        let (name, other) = expression.split_once(":-").unwrap_or((expression, ""));
        let value = known.get(name).filter(|value| !value.is_empty());
        made.push_str(value.map_or(other, String::as_str));
        rest = left;
    }
    made.push_str(rest);
    made
}

/// The name under which `buildah` has to know an image so that a Dockerfile finds it; `None`: it is none
/// that an image can have.
#[must_use]
pub fn reference(name: &str) -> Option<String> {
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name, "latest"),
    };
    let part = |part: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        part.chars().all(fits) && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let first = path.split('/').next().unwrap_or_default();
    let has_domain = path.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let rest = if has_domain { path.split_once('/')?.1 } else { path };
    let domain = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    let tag_fits = tag.len() <= 128
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let fits = name.len() <= 255
        && tag_fits
        && rest.split('/').all(part)
        && (!has_domain
            || (first.chars().all(domain)
                && first.starts_with(|c: char| c.is_ascii_alphanumeric())));
    let prefix = if has_domain { "" } else { "localhost/" };
    fits.then(|| format!("{prefix}{path}:{tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, args: &[(&str, &str)], wanted: &[&str]) {
        let args = args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let found = bases(text, &args.collect()).unwrap();
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), wanted, "{text}");
    }

    #[test]
    fn images_are_found_wherever_a_dockerfile_names_them() {
        check("FROM scratch\nCOPY a /a\n", &[], &[]);
        check("# FROM no\nfrom --platform=x web:3 AS one\nFROM one\n", &[], &["web:3"]);
        check("FROM a AS One\nCOPY --from=one x y\nCOPY --chown=1 --from=b x y", &[], &["a", "b"]);
        check(
            "FROM a\nCOPY --from=0 x y\nRUN --mount=type=bind,from=c,target=/c ls",
            &[],
            &["a", "c"],
        );
        check("FROM \\\n  a \\\n AS x", &[], &["a"]);
        check("ARG B=\"x\"\nARG V\nFROM ${B}:$V\nFROM ${Q:-z}", &[("V", "2")], &["x:2", "z"]);
        check("FROM a\nRUN echo --from=no", &[], &["a"]);
        check("", &[], &[]);
        let many: String = (0..17).map(|number| format!("FROM i{number}\n")).collect();
        bases(&many, &BTreeMap::new()).unwrap_err();
    }

    #[test]
    fn names_are_those_that_buildah_looks_for() {
        for (name, wanted) in [
            ("web", Some("localhost/web:latest")),
            ("team/web:3", Some("localhost/team/web:3")),
            ("registry:5000/web", Some("registry:5000/web:latest")),
            ("docker.io/library/web:3", Some("docker.io/library/web:3")),
            ("Web", None),
            ("web:", None),
            ("../web", None),
            ("web@sha256:00", None),
            ("--help", None),
            ("", None),
        ] {
            assert_eq!(reference(name).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn a_commit_changes_no_files() {
        check_change("cmd [\"a\"]").unwrap();
        for bad in ["RUN rm -rf /", "COPY a b", "", "ENV a=b\nRUN x"] {
            check_change(bad).unwrap_err();
        }
    }
}
