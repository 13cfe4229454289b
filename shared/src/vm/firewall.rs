//! Firewall rules of VMs, in the language of SmartOS's fwadm: `FROM any TO all vms ALLOW tcp PORT 22`.
//!
//! The subset: one side of a rule names VMs, the other one `any`, addresses or networks. Where the
//! other VMs of a tag are, a server does not know.

mod parser;

use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use serde_json::Value;

use crate::ids::VmUuid;
use crate::lenient;

/// Rules of one VM.
pub(super) const MAX_FIREWALL_RULES: usize = 64;
/// Longest rule, bytes.
pub(super) const MAX_RULE_BYTES: usize = 4096;
/// Targets of one side, and ports or types, of one rule.
pub(super) const MAX_RULE_WORDS: usize = 32;
/// Highest priority; rules without one have 0.
pub(super) const MAX_PRIORITY: u8 = 100;

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRule(String);

fn bad<T>(problem: impl Into<String>) -> Result<T, BadRule> {
    Err(BadRule(problem.into()))
}

/// Who a rule is about, seen from the VM that it is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What others send to the VM.
    Inbound,
    /// What the VM sends.
    Outbound,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped.
    Block,
}

/// VMs that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vms {
    /// Every one.
    All,
    /// This one.
    Vm(VmUuid),
    /// Those with this tag, and with this value of it if there is one.
    Tag(String, Option<String>),
}

/// What a packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// TCP to these ports.
    Tcp(Vec<RangeInclusive<u16>>),
    /// UDP to these ports.
    Udp(Vec<RangeInclusive<u16>>),
    /// ICMP of these types and codes; none: all.
    Icmp(Vec<(u8, Option<u8>)>),
    /// The same of ICMPv6.
    Icmp6(Vec<(u8, Option<u8>)>),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its direction, seen from its VMs.
    pub direction: Direction,
    /// The VMs that it is for.
    pub vms: Vec<Vms>,
    /// The other side; empty: any address.
    pub others: Vec<IpNet>,
    /// What it does.
    pub action: Action,
    /// With what.
    pub traffic: Traffic,
    /// Rules of a higher one go first.
    pub priority: u8,
}

impl Rule {
    /// Whether it is for a VM with this uuid and these tags.
    ///
    /// Tags may also be numbers and switches.
    #[must_use]
    pub fn is_for(&self, vm: VmUuid, tags: Option<&Value>) -> bool {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.vms.iter().any(|target| match target {
            Vms::All => true,
            Vms::Vm(uuid) => *uuid == vm,
            Vms::Tag(name, value) => tags
                .and_then(|tags| tags.get(name))
                .is_some_and(|tag| value.as_ref().is_none_or(|value| *value == text(tag))),
        })
    }
}

/// Reads the rules of a VM that are enabled, from its property `firewall_rules`.
///
/// # Errors
/// The number of the rule, and what is wrong with it. Those that are not enabled are checked as well.
pub fn firewall_rules(property: Option<&Value>) -> Result<Vec<Rule>, (usize, BadRule)> {
    let listed = property.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if listed.len() > MAX_FIREWALL_RULES {
        return Err((
            MAX_FIREWALL_RULES,
            BadRule(format!("a VM has at most {MAX_FIREWALL_RULES} rules")),
        ));
    }
    let mut rules = Vec::new();
    for (number, described) in listed.iter().enumerate() {
        let text = described.get("rule").and_then(Value::as_str);
        let rule = text.ok_or_else(|| BadRule("has no text `rule`".to_owned()));
        let rule: Rule = rule.and_then(str::parse).map_err(|bad| (number, bad))?;
        let enabled = described.get("enabled").and_then(lenient::flag);
        if enabled == Some(true) {
            rules.push(rule);
        }
    }
    Ok(rules)
}

impl Rule {
    /// Whether it is about one family's protocol and about addresses of the other one only.
    fn is_contradictory(&self) -> bool {
        let wanted = |net: &IpNet| match self.traffic {
            Traffic::Icmp(_) => matches!(net, IpNet::V4(_)),
            Traffic::Icmp6(_) => matches!(net, IpNet::V6(_)),
            Traffic::Tcp(_) | Traffic::Udp(_) => true,
        };
        !self.others.is_empty() && !self.others.iter().any(wanted)
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        if text.len() > MAX_RULE_BYTES {
            return bad(format!("a rule has at most {MAX_RULE_BYTES} bytes"));
        }
        parser::rule(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap_or_else(|bad| panic!("{text}: {bad}"))
    }

    #[test]
    fn rules_say_who_what_and_whether() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let web = rule("FROM any TO tag www ALLOW tcp (PORT 80 AND PORT 443)");
        assert_eq!(
            (web.direction, web.action, web.priority),
            (Direction::Inbound, Action::Allow, 0)
        );
        assert_eq!(web.vms, [Vms::Tag("www".to_owned(), None)]);
        assert_eq!(web.traffic, Traffic::Tcp(vec![80..=80, 443..=443]));
        assert!(web.others.is_empty());
        let mail = rule(
            "from (tag \"VM type\" = \"mail server\" or vm 04128191-d2cb-43fc-a970-e4deefe970d8) \
             to (ip 192.0.2.7 OR subnet 198.51.100.9/24 OR ip 2001:db8::1) block udp \
             ports 25, 465-587, 1000 - 1001,2000 -2001 priority 7",
        );
        assert_eq!(mail.direction, Direction::Outbound);
        assert_eq!(
            mail.others,
            [net("192.0.2.7/32"), net("198.51.100.0/24"), net("2001:db8::1/128")]
        );
        let ports = vec![25..=25, 465..=587, 1000..=1001, 2000..=2001];
        assert_eq!((mail.traffic, mail.priority), (Traffic::Udp(ports), 7));
        let ping = rule("FROM any TO all vms ALLOW icmp (TYPE 8 CODE 0 AND TYPE 13)");
        assert_eq!(ping.traffic, Traffic::Icmp(vec![(8, Some(0)), (13, None)]));
        let all = rule("FROM all vms TO any BLOCK icmp6 TYPE all");
        assert_eq!(all.traffic, Traffic::Icmp6(Vec::new()));
        let every = rule("FROM (any OR ip 192.0.2.1) TO all vms ALLOW tcp PORT all");
        assert_eq!((every.others.len(), every.traffic), (0, Traffic::Tcp(vec![0..=65535])));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            ("", "FROM is missing at the end"),
            ("FROM any", "TO is missing at the end"),
            ("FROM any TO any ALLOW tcp PORT 1", "one side must name VMs"),
            ("FROM tag a TO tag b ALLOW tcp PORT 1", "addresses of other VMs"),
            ("FROM (any OR tag b) TO tag a ALLOW tcp PORT 1", "one side must name VMs"),
            ("FROM any TO all vms PASS tcp PORT 1", "ALLOW or BLOCK is missing"),
            ("FROM any TO all vms ALLOW sctp PORT 1", "icmp6 is missing before \"sctp\""),
            ("FROM any TO all vms ALLOW tcp PORT 65536", "\"65536\" is no port"),
            ("FROM any TO all vms ALLOW tcp PORTS 9-8", "\"9-8\" are no ports"),
            (
                "FROM any TO all vms ALLOW tcp (PORT 1 PORT 2)",
                "AND or ) is missing before \"PORT\"",
            ),
            ("FROM any TO all vms ALLOW tcp PORT 1 PRIORITY 101", "at most 100"),
            ("FROM any TO all vms ALLOW tcp PORT 1; drop", "\"1;\" is no port"),
            ("FROM any TO tag \"a ALLOW tcp PORT 1", "a quote is not closed"),
            ("FROM ip 10.0.0.300 TO all vms ALLOW tcp PORT 1", "\"10.0.0.300\" is no address"),
            ("FROM ip 192.0.2.1 TO all vms ALLOW icmp6 TYPE 1", "never meet"),
            ("FROM any TO all vms ALLOW tcp PORT 1 now", "nothing more is expected before \"now\""),
        ] {
            let bad = text.parse::<Rule>().expect_err(text).to_string();
            assert!(bad.contains(problem), "{text}: {bad}");
        }
        let many = vec!["PORT 1"; MAX_RULE_WORDS + 1].join(" AND ");
        let many = format!("FROM any TO all vms ALLOW tcp ({many})").parse::<Rule>();
        assert!(many.unwrap_err().to_string().contains("at most 32 members"));
    }

    #[test]
    fn a_rule_is_for_vms_by_uuid_and_tag() {
        let vm = VmUuid(Uuid::from_u128(7));
        let tags = json!({ "role": "web", "size": 3, "busy": true });
        let is_for = |target: &str| {
            rule(&format!("FROM any TO {target} ALLOW tcp PORT 1")).is_for(vm, Some(&tags))
        };
        for target in ["all vms", &format!("vm {vm}"), "tag role", "tag role=web", "tag size = 3"] {
            assert!(is_for(target), "{target}");
        }
        let others = "(tag x OR tag role=db OR vm 00000000-0000-0000-0000-000000000008)";
        assert!(!is_for(others) && is_for("(tag x OR tag busy=true)"));
    }

    #[test]
    fn those_that_are_not_enabled_are_checked_alone() {
        let good = "FROM any TO all vms ALLOW tcp PORT 1";
        let rules = |value: Value| firewall_rules(Some(&value));
        let on = json!([{ "rule": good, "enabled": true }, { "rule": good }]);
        assert_eq!(rules(on).unwrap().len(), 1);
        assert_eq!(rules(json!([{ "rule": good }, { "rule": "x" }])).unwrap_err().0, 1);
        assert_eq!(rules(json!([{ "enabled": true }])).unwrap_err().0, 0);
        assert_eq!(firewall_rules(None), Ok(Vec::new()));
        let many = vec![json!({ "rule": good }); MAX_FIREWALL_RULES + 1];
        assert!(rules(json!(many)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "\\PC{0,80}") {
            drop(text.parse::<Rule>());
        }

        #[test]
        fn words_in_any_order_are_a_rule_or_not(words in prop::collection::vec(prop::sample::select(vec![
            "FROM", "TO", "any", "all", "vms", "tag", "x", "=", "(", ")", "OR", "AND", "ALLOW", "BLOCK",
            "tcp", "icmp", "PORT", "PORTS", "TYPE", "CODE", "80", "-", ",", "ip", "192.0.2.1", "\"", "PRIORITY",
        ]), 0..24)) {
            if let Ok(rule) = words.join(" ").parse::<Rule>() {
                prop_assert!(!rule.vms.is_empty() && rule.priority <= MAX_PRIORITY);
            }
        }
    }
}
