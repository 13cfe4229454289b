//! From the text of a rule to the rule.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;

use super::{Action, BadRule, Direction, MAX_PRIORITY, MAX_RULE_WORDS, Rule, Traffic, Vms, bad};

/// Reads a whole rule.
pub(super) fn rule(text: &str) -> Result<Rule, BadRule> {
    Parser(words(text)?.into_iter().peekable()).rule()
}

/// A word of a rule. Names and values of tags may be quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Bare(String),
    Quoted(String),
    /// `(`, `)`, `=` or `,`.
    Mark(char),
}

fn words(text: &str) -> Result<Vec<Word>, BadRule> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '(' | ')' | '=' | ',' => {
                words.push(Word::Mark(first));
                1
            }
            '"' => {
                let Some(end) = rest[1..].find('"') else { return bad("a quote is not closed") };
                words.push(Word::Quoted(rest[1..=end].to_owned()));
                end + 2
            }
            _ => {
                let ends = |c: char| c.is_whitespace() || "(),=\"".contains(c);
                let end = rest.find(ends).unwrap_or(rest.len());
                words.push(Word::Bare(rest[..end].to_owned()));
                end
            }
        };
        rest = rest[length..].trim_start();
    }
    Ok(words)
}

/// One side of a rule, as it is written.
enum Target {
    Any,
    Other(IpNet),
    Vms(Vms),
}

struct Parser(std::iter::Peekable<std::vec::IntoIter<Word>>);

impl Parser {
    /// Takes the next word if it is this one, in capitals or not.
    fn takes(&mut self, keyword: &str) -> bool {
        let is =
            |word: &Word| matches!(word, Word::Bare(text) if text.eq_ignore_ascii_case(keyword));
        self.0.next_if(is).is_some()
    }

    fn takes_mark(&mut self, mark: char) -> bool {
        self.0.next_if_eq(&Word::Mark(mark)).is_some()
    }

    fn needs(&mut self, keyword: &str) -> Result<(), BadRule> {
        if self.takes(keyword) {
            Ok(())
        } else {
            bad(format!("{keyword} is missing {}", self.here()))
        }
    }

    /// Where the parser is, for a message.
    fn here(&mut self) -> String {
        match self.0.peek() {
            Some(Word::Bare(text) | Word::Quoted(text)) => format!("before {text:?}"),
            Some(Word::Mark(mark)) => format!("before {mark:?}"),
            None => "at the end".to_owned(),
        }
    }

    fn text(&mut self, what: &str) -> Result<String, BadRule> {
        match self.0.next_if(|word| !matches!(word, Word::Mark(_))) {
            Some(Word::Bare(text) | Word::Quoted(text)) => Ok(text),
            _ => bad(format!("{what} is missing {}", self.here())),
        }
    }

    fn parse<T: FromStr>(&mut self, what: &str) -> Result<T, BadRule> {
        let text = self.text(what)?;
        text.parse().or_else(|_| bad(format!("{text:?} is no {what}")))
    }

    /// One of these, or several in parentheses with a keyword between them.
    fn list<T>(
        &mut self,
        between: &str,
        one: impl Fn(&mut Self) -> Result<T, BadRule>,
    ) -> Result<Vec<T>, BadRule> {
        if !self.takes_mark('(') {
            return Ok(vec![one(self)?]);
        }
        let mut list = vec![one(self)?];
        while self.takes(between) {
            list.push(one(self)?);
        }
        if !self.takes_mark(')') {
            return bad(format!("{between} or ) is missing {}", self.here()));
        }
        bounded(list)
    }

    fn target(&mut self) -> Result<Target, BadRule> {
        if self.takes("any") {
            return Ok(Target::Any);
        }
        if self.takes("all") {
            return self.needs("vms").map(|()| Target::Vms(Vms::All));
        }
        if self.takes("vm") {
            return self.parse("uuid").map(|vm| Target::Vms(Vms::Vm(vm)));
        }
        if self.takes("ip") {
            return self.parse::<IpAddr>("address").map(|ip| Target::Other(ip.into()));
        }
        if self.takes("subnet") {
            return self.parse::<IpNet>("network").map(|net| Target::Other(net.trunc()));
        }
        if self.takes("tag") {
            let name = self.text("the name of a tag")?;
            let value =
                self.takes_mark('=').then(|| self.text("the value of a tag")).transpose()?;
            return Ok(Target::Vms(Vms::Tag(name, value)));
        }
        bad(format!("any, all vms, vm, ip, subnet or tag is missing {}", self.here()))
    }

    fn ports(&mut self) -> Result<Vec<RangeInclusive<u16>>, BadRule> {
        if !self.takes("PORTS") {
            let port = |parser: &mut Self| {
                parser.needs("PORT")?;
                if parser.takes("all") { Ok(0..=u16::MAX) } else { parser.port() }
            };
            return self.list("AND", port);
        }
        let mut ports = vec![self.range()?];
        while self.takes_mark(',') {
            ports.push(self.range()?);
        }
        bounded(ports)
    }

    fn port(&mut self) -> Result<RangeInclusive<u16>, BadRule> {
        self.parse("port").map(|port: u16| port..=port)
    }

    /// `80`, `8000-8080` or `8000 - 8080`.
    fn range(&mut self) -> Result<RangeInclusive<u16>, BadRule> {
        let text = self.text("a port")?;
        let (first, last) = match text.split_once('-') {
            Some((first, "")) => (first.to_owned(), self.text("a port")?),
            Some((first, last)) => (first.to_owned(), last.to_owned()),
            None if self.takes("-") => (text, self.text("a port")?),
            None => {
                match self.0.next_if(|word| matches!(word, Word::Bare(w) if w.starts_with('-'))) {
                    Some(Word::Bare(last)) => (text, last[1..].to_owned()),
                    _ => (text.clone(), text),
                }
            }
        };
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
            _ => bad(format!("\"{first}-{last}\" are no ports")),
        }
    }

    fn types(&mut self) -> Result<Vec<(u8, Option<u8>)>, BadRule> {
        let one = |parser: &mut Self| {
            parser.needs("TYPE")?;
            if parser.takes("all") {
                return Ok(None);
            }
            let number = parser.parse("ICMP type")?;
            let code = parser.takes("CODE").then(|| parser.parse("ICMP code")).transpose()?;
            Ok(Some((number, code)))
        };
        // `TYPE all` beside others says it all.
        Ok(self.list("AND", one)?.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default())
    }

    fn traffic(&mut self) -> Result<Traffic, BadRule> {
        if self.takes("tcp") {
            return self.ports().map(Traffic::Tcp);
        }
        if self.takes("udp") {
            return self.ports().map(Traffic::Udp);
        }
        if self.takes("icmp") {
            return self.types().map(Traffic::Icmp);
        }
        if self.takes("icmp6") {
            return self.types().map(Traffic::Icmp6);
        }
        bad(format!("tcp, udp, icmp or icmp6 is missing {}", self.here()))
    }

    fn rule(&mut self) -> Result<Rule, BadRule> {
        self.needs("FROM")?;
        let from = self.list("OR", Self::target)?;
        self.needs("TO")?;
        let to = self.list("OR", Self::target)?;
        let action = if self.takes("ALLOW") {
            Action::Allow
        } else {
            self.needs("BLOCK").map_err(|_| BadRule("ALLOW or BLOCK is missing".to_owned()))?;
            Action::Block
        };
        let traffic = self.traffic()?;
        let priority = if self.takes("PRIORITY") { self.parse("priority")? } else { 0 };
        if priority > MAX_PRIORITY {
            return bad(format!("a priority is at most {MAX_PRIORITY}"));
        }
        if self.0.peek().is_some() {
            return bad(format!("nothing more is expected {}", self.here()));
        }
        let (direction, vms, others) = sides(&from, &to)?;
        let rule = Rule { direction, vms, others, action, traffic, priority };
        if rule.is_contradictory() {
            bad("its addresses and its protocol never meet")
        } else {
            Ok(rule)
        }
    }
}

fn bounded<T>(list: Vec<T>) -> Result<Vec<T>, BadRule> {
    if list.len() > MAX_RULE_WORDS {
        return bad(format!("a list has at most {MAX_RULE_WORDS} members"));
    }
    Ok(list)
}

/// All of them VMs.
fn vms(targets: &[Target]) -> Option<Vec<Vms>> {
    let vms = |target: &Target| match target {
        Target::Vms(vms) => Some(vms.clone()),
        Target::Any | Target::Other(_) => None,
    };
    targets.iter().map(vms).collect()
}

/// None of them a VM; empty: any address.
fn others(targets: &[Target]) -> Option<Vec<IpNet>> {
    let mut others = Some(Vec::new());
    for target in targets {
        match target {
            Target::Other(net) => others.as_mut()?.push(*net),
            Target::Any => {}
            Target::Vms(_) => others = None,
        }
    }
    let any = targets.iter().any(|target| matches!(target, Target::Any));
    others.map(|others| if any { Vec::new() } else { others })
}

fn sides(from: &[Target], to: &[Target]) -> Result<(Direction, Vec<Vms>, Vec<IpNet>), BadRule> {
    match (others(from), vms(to), vms(from), others(to)) {
        (Some(others), Some(vms), ..) => Ok((Direction::Inbound, vms, others)),
        (.., Some(vms), Some(others)) => Ok((Direction::Outbound, vms, others)),
        _ => bad(
            "one side must name VMs (all vms, vm, tag) and the other one none (any, ip, subnet): a \
             server does not know the addresses of other VMs",
        ),
    }
}
