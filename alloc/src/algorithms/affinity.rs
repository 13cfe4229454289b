//! `calculate-affinity`: turns wishes by alias, tag or id into VMs to be near to or far from.

use regex::{Regex, RegexBuilder};
use serde_json::Value;
use uuid::Uuid;

use crate::algorithm::{Algorithm, Kind};
use crate::num::display;
use crate::reason::Reasons;
use crate::run::Run;
use crate::validate::{Affinity, AffinityKind, Locality, is_uuid};
use crate::vm::{State, Vm};

pub(super) static AFFINITY: Algorithm = Algorithm {
    name: "calculate-affinity",
    title: "Convert affinity to locality hints",
    kind: Kind::Set,
    run,
    ..Algorithm::PLAIN
};

/// Largest compiled pattern, bytes: some milliseconds of work, and a dozen of `\w`.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

fn run(run: &mut Run<'_>) -> Reasons {
    let request = run.request;
    let Some(wishes) = &request.vm.affinity else { return Reasons::skip("No affinity found") };
    let strict = wishes.iter().any(|wish| !wish.soft);
    let owned = owned_vms(run);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for wish in wishes.iter().filter(|wish| wish.key != "image" && !(strict && wish.soft)) {
        if run.is_over() {
            return Reasons::None;
        }
        match resolve(wish, &owned) {
            Ok(vms) if wish.equal => near.extend(vms),
            Ok(vms) => far.extend(vms),
            Err(Unresolved::Many(text) | Unresolved::TooLarge(text)) => return run.clear(text),
            // Nobody knows whom it means: a VM must not be placed as if it meant nobody.
            Err(Unresolved::Unreadable(text)) if strict => return run.clear(text),
            Err(Unresolved::Unreadable(_)) => {}
            Err(Unresolved::Nobody(text)) if strict && wish.equal => return run.clear(text),
            Err(Unresolved::Nobody(_)) => {}
        }
    }
    // An affinity that means somebody replaces the locality that the request names.
    if !near.is_empty() || !far.is_empty() {
        run.found.set_locality(Locality { strict, near, far });
    }
    Reasons::None
}

/// The owner's VMs anywhere, also on servers that earlier steps removed.
fn owned_vms<'a>(run: &Run<'a>) -> Vec<&'a Vm> {
    let (snapshot, owner) = (run.snapshot, run.request.vm.owner);
    let slots = snapshot.owner_slots(owner);
    slots
        .flat_map(|(slot, _)| snapshot.server(slot).vms.iter())
        .map(AsRef::as_ref)
        .filter(|vm| vm.owner == owner)
        .collect()
}

/// Why it is not known whom a wish means, as the step says it.
#[derive(Debug, PartialEq)]
enum Unresolved {
    /// Only a strict wish for nearness fails then.
    Nobody(String),
    /// It names several VMs where it must name one.
    Many(String),
    /// Its pattern takes more room than a request may have.
    TooLarge(String),
    /// It is no regular expression that can be used here.
    Unreadable(String),
}

/// The VMs a wish means.
fn resolve(wish: &Affinity, owned: &[&Vm]) -> Result<Vec<String>, Unresolved> {
    let instance = matches!(wish.key.as_str(), "container" | "instance");
    let found = if instance { instances(wish, owned)? } else { tagged(wish, owned)? };
    if !found.is_empty() {
        return Ok(found);
    }
    let (key, value, affinity) = (&wish.key, &wish.value, said(wish));
    let what = if instance { format!("\"{value}\"") } else { format!("tag \"{key}={value}\"") };
    let text = format!("no active containers found matching {what} for affinity \"{affinity}\"");
    Err(Unresolved::Nobody(text))
}

/// A wish as `docker run -e affinity:…` says it.
fn said(wish: &Affinity) -> String {
    let operator = if wish.equal { "==" } else { "!=" };
    let soft = if wish.soft { "~" } else { "" };
    format!("{}{operator}{soft}{}", wish.key, wish.value)
}

fn is_active(vm: &Vm) -> bool {
    vm.state != State::Gone
}

fn select(owned: &[&Vm], matches: impl Fn(&Vm) -> bool) -> Vec<String> {
    owned.iter().filter(|vm| matches(vm)).map(|vm| vm.uuid.to_string()).collect()
}

fn instances(wish: &Affinity, owned: &[&Vm]) -> Result<Vec<String>, Unresolved> {
    let value = wish.value.as_str();
    if is_uuid(value) {
        return Ok(vec![value.to_owned()]);
    }
    if value.len() == 64 && value.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        // A docker id begins with the digits of its VM's uuid.
        let uuid = Uuid::parse_str(&value[..32]).ok();
        return Ok(select(owned, |vm| {
            is_active(vm) && Some(vm.uuid) == uuid && vm.docker_id.as_deref() == Some(value)
        }));
    }
    if wish.kind == AffinityKind::Regex {
        let regex = Some(inner_regex(wish)?);
        return Ok(select(owned, |vm| is_active(vm) && alias_matches(vm, regex.as_ref())));
    }
    let by_alias = select(owned, |vm| {
        is_active(vm) && vm.alias.as_deref().is_some_and(|alias| wildcard(value, alias))
    });
    if !by_alias.is_empty() {
        return Ok(by_alias);
    }
    if wish.kind == AffinityKind::Glob {
        let regex = compile(&format!("^{}$", value.replace('*', ".*")))?;
        return Ok(select(owned, |vm| is_active(vm) && alias_matches(vm, regex.as_ref())));
    }
    let by_id: Vec<&&Vm> = owned
        .iter()
        .filter(|vm| is_active(vm))
        .filter(|vm| vm.docker_id.as_deref().is_some_and(|id| id.starts_with(value)))
        .collect();
    if by_id.len() > 1 {
        let ids: Vec<_> = by_id.iter().filter_map(|vm| vm.docker_id.as_deref()).collect();
        let text = format!("Multiple matches: {value}={}", Value::from(ids));
        return Err(Unresolved::Many(text));
    }
    Ok(by_id.into_iter().map(|vm| vm.uuid.to_string()).collect())
}

fn alias_matches(vm: &Vm, regex: Option<&Regex>) -> bool {
    vm.alias.as_deref().zip(regex).is_some_and(|(alias, regex)| regex.is_match(alias))
}

fn tagged(wish: &Affinity, owned: &[&Vm]) -> Result<Vec<String>, Unresolved> {
    let label = format!("docker:label:{}", wish.key);
    let values = |vm: &Vm| {
        let tags = vm.tags.as_deref();
        [wish.key.as_str(), label.as_str()].map(|name| Some(display(Some(tags?.get(name)?))))
    };
    if wish.kind == AffinityKind::Regex {
        let regex = inner_regex(wish)?;
        return Ok(select(owned, |vm| {
            is_active(vm) && values(vm).into_iter().flatten().any(|value| regex.is_match(&value))
        }));
    }
    Ok(select(owned, |vm| {
        is_active(vm) && values(vm).into_iter().flatten().any(|value| wildcard(&wish.value, &value))
    }))
}

/// `/…/` without its slashes. There is no backtracking, so no expression can take long;
/// look-around and back references don't exist.
fn inner_regex(wish: &Affinity) -> Result<Regex, Unresolved> {
    let mut chars = wish.value.chars();
    chars.next();
    chars.next_back();
    compile(chars.as_str())?.ok_or_else(|| {
        let affinity = said(wish);
        let text = format!("unsupported regular expression in affinity \"{affinity}\"");
        Unresolved::Unreadable(text)
    })
}

/// A pattern; `None` if it is none.
fn compile(pattern: &str) -> Result<Option<Regex>, Unresolved> {
    match RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build() {
        Ok(regex) => Ok(Some(regex)),
        Err(regex::Error::CompiledTooBig(_)) => {
            Err(Unresolved::TooLarge(format!("the affinity pattern \"{pattern}\" is too large")))
        }
        Err(_) => Ok(None),
    }
}

/// Whether the text fits a pattern in which only `*` is special.
fn wildcard(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.len() >= tail.len() && text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wildcards_are_globs(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            let regex = Regex::new(&format!("^{}$", pattern.replace('*', ".*"))).expect("valid");
            prop_assert_eq!(wildcard(&pattern, &text), regex.is_match(&text));
        }
    }

    fn vm(n: u128, alias: &str, tag: Value, id: &str) -> Vm {
        Vm {
            uuid: Uuid::from_u128(n),
            alias: Some(alias.into()),
            docker_id: Some(id.into()),
            tags: Some(Box::new([("role".to_owned(), tag)].into_iter().collect())),
            ..Vm::default()
        }
    }

    #[track_caller]
    fn check(key: &str, value: &str, kind: AffinityKind, want: Result<Vec<u128>, &str>) {
        let vms = [
            vm(1, "web0", "db".into(), "abc1"),
            vm(2, "web1", 1.into(), "abc2"),
            vm(3, "mq", true.into(), "def3"),
        ];
        let wish = Affinity {
            key: key.to_owned(),
            equal: true,
            value: value.to_owned(),
            kind,
            soft: false,
        };
        let got = resolve(&wish, &vms.iter().collect::<Vec<_>>());
        let got = got.map_err(|unresolved| match unresolved {
            Unresolved::Nobody(text)
            | Unresolved::Many(text)
            | Unresolved::TooLarge(text)
            | Unresolved::Unreadable(text) => text,
        });
        let text = |n: u128| Uuid::from_u128(n).to_string();
        let want =
            want.map(|vms| vms.into_iter().map(text).collect::<Vec<_>>()).map_err(str::to_owned);
        assert_eq!(got, want);
    }

    #[test]
    fn wishes_resolve() {
        use AffinityKind::{Exact, Glob, Regex};
        check("instance", "web0", Exact, Ok(vec![1]));
        check("container", "web*", Glob, Ok(vec![1, 2]));
        check("instance", "w.b0", Glob, Ok(vec![1]));
        check("instance", "/^(mq|web1)$/", Regex, Ok(vec![2, 3]));
        check("instance", "/", Regex, Ok(vec![1, 2, 3]));
        for key in ["instance", "role"] {
            let text = format!("unsupported regular expression in affinity \"{key}==/web(?!0)/\"");
            check(key, "/web(?!0)/", Regex, Err(&text));
        }
        check("instance", "def", Exact, Ok(vec![3]));
        check("instance", "abc", Exact, Err("Multiple matches: abc=[\"abc1\",\"abc2\"]"));
        check("role", "db", Exact, Ok(vec![1]));
        check("role", "1", Exact, Ok(vec![2]));
        check("role", "/t.*e/", Regex, Ok(vec![3]));
        check("role", r"/^\w+-?\w*-?\w*-?\w*$/", Regex, Ok(vec![1, 2, 3]));
        check("role", r"/\w{450}/", Regex, Err(r#"the affinity pattern "\w{450}" is too large"#));
        check(
            "instance",
            r"\w{450}",
            Glob,
            Err(r#"the affinity pattern "^\w{450}$" is too large"#),
        );
        check(
            "role",
            "x",
            Exact,
            Err("no active containers found matching tag \"role=x\" for affinity \"role==x\""),
        );
        check(
            "instance",
            "x",
            Exact,
            Err("no active containers found matching \"x\" for affinity \"instance==x\""),
        );
    }
}
