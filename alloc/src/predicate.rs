//! The language of `filter_owner_server`: a small part of JavaScript over one variable, `server`.
//!
//! Grammar: `or := and ('||' and)*`, `and := eq ('&&' eq)*`, `eq := cmp (('==='|'!=='|'=='|'!=')
//! cmp)*`, `cmp := unary (('<'|'>'|'<='|'>=') unary)*`, `unary := '!'* primary`, `primary :=
//! literal | '(' or ')' | 'server' ('.' name | '[' text ']')*`.

use std::borrow::Cow;

use serde_json::Value;

use crate::num::{self, truthy};

/// A text outside the supported language.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPredicate {
    /// The predicate is not a text.
    #[error("the predicate is not a text")]
    NotText,
    /// Something unexpected stands at this byte.
    #[error("unexpected text at byte {0}")]
    Unexpected(usize),
    /// More than [`MAX_DEPTH`] levels.
    #[error("nested too deeply")]
    Deep,
}

/// Access to a member of `undefined` or `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvalError;

/// Levels of parentheses and `!`; a guard against exhausting the stack.
const MAX_DEPTH: usize = 64;

/// A parsed predicate.
#[derive(Clone, Debug)]
pub(crate) struct Predicate(Node);

#[derive(Clone, Debug)]
enum Node {
    Literal(Option<Value>),
    Member(Vec<String>),
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Compare(Op, Box<Node>, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Same,
    NotSame,
    Equal,
    NotEqual,
    Less,
    Greater,
    LessEqual,
    GreaterEqual,
}

/// A value, absent for `undefined`.
type Operand<'a> = Option<Cow<'a, Value>>;

impl Predicate {
    pub(crate) fn parse(text: &str) -> Result<Self, BadPredicate> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let node = parser.or()?;
        parser.skip_space();
        if parser.at == text.len() { Ok(Self(node)) } else { Err(parser.unexpected()) }
    }

    /// The members of `server` that it looks at.
    pub(crate) fn members(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.0.collect(&mut found);
        found
    }

    /// Whether the predicate is truthy; `member` answers for the members of `server`.
    pub(crate) fn test<'a>(
        &'a self,
        member: &dyn Fn(&str) -> Operand<'a>,
    ) -> Result<bool, EvalError> {
        let value = self.0.eval(member)?;
        Ok(truthy(value.as_deref()))
    }
}

impl Node {
    fn collect<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Self::Literal(_) => {}
            Self::Member(path) => found.extend(path.first().map(String::as_str)),
            Self::Not(node) => node.collect(found),
            Self::And(a, b) | Self::Or(a, b) | Self::Compare(_, a, b) => {
                a.collect(found);
                b.collect(found);
            }
        }
    }

    fn eval<'a>(&'a self, member: &dyn Fn(&str) -> Operand<'a>) -> Result<Operand<'a>, EvalError> {
        Ok(match self {
            Self::Literal(value) => value.as_ref().map(Cow::Borrowed),
            Self::Member(path) => Self::member(path, member)?,
            Self::Not(node) => {
                let value = node.eval(member)?;
                Some(Cow::Owned(Value::Bool(!truthy(value.as_deref()))))
            }
            Self::And(a, b) => {
                let a = a.eval(member)?;
                if truthy(a.as_deref()) { b.eval(member)? } else { a }
            }
            Self::Or(a, b) => {
                let a = a.eval(member)?;
                if truthy(a.as_deref()) { a } else { b.eval(member)? }
            }
            Self::Compare(op, a, b) => {
                let (a, b) = (a.eval(member)?, b.eval(member)?);
                Some(Cow::Owned(Value::Bool(compare(*op, a.as_deref(), b.as_deref()))))
            }
        })
    }

    fn member<'a>(
        path: &[String],
        member: &dyn Fn(&str) -> Operand<'a>,
    ) -> Result<Operand<'a>, EvalError> {
        let Some((first, rest)) = path.split_first() else {
            return Ok(Some(Cow::Owned(Value::Object(serde_json::Map::new()))));
        };
        let mut value = member(first);
        for name in rest {
            value = match value {
                None => return Err(EvalError),
                Some(value) if value.is_null() => return Err(EvalError),
                Some(Cow::Borrowed(value)) => step(value, name),
                Some(Cow::Owned(value)) => {
                    step(&value, name).map(|value| Cow::Owned(value.into_owned()))
                }
            };
        }
        Ok(value)
    }
}

fn step<'a>(value: &'a Value, name: &str) -> Operand<'a> {
    match value {
        Value::Object(map) => map.get(name).map(Cow::Borrowed),
        Value::Array(items) if name == "length" => Some(Cow::Owned(items.len().into())),
        Value::Array(items) => {
            name.parse::<usize>().ok().and_then(|i| items.get(i)).map(Cow::Borrowed)
        }
        Value::String(text) if name == "length" => {
            Some(Cow::Owned(text.encode_utf16().count().into()))
        }
        _ => None,
    }
}

fn compare(op: Op, a: Option<&Value>, b: Option<&Value>) -> bool {
    match op {
        Op::Same => same(a, b),
        Op::NotSame => !same(a, b),
        Op::Equal => equal(a, b),
        Op::NotEqual => !equal(a, b),
        Op::Less | Op::Greater | Op::LessEqual | Op::GreaterEqual => ordered(op, a, b),
    }
}

fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(Value::Number(a)), Some(Value::Number(b))) => a.as_f64() == b.as_f64(),
        // Two objects are the same only if they are one object.
        (Some(Value::Array(_) | Value::Object(_)), _) => false,
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

fn equal(a: Option<&Value>, b: Option<&Value>) -> bool {
    let nothing = |x: Option<&Value>| x.is_none_or(Value::is_null);
    match (a, b) {
        _ if nothing(a) || nothing(b) => nothing(a) && nothing(b),
        (Some(Value::String(_)), Some(Value::String(_)))
        | (Some(Value::Array(_) | Value::Object(_)), Some(Value::Array(_) | Value::Object(_))) => {
            same(a, b)
        }
        (Some(a), Some(b)) => number(Some(a)) == number(Some(b)),
        _ => false,
    }
}

fn number(value: Option<&Value>) -> f64 {
    match value {
        None => f64::NAN,
        Some(Value::Array(_)) => num::num(&Value::String(num::display(value))),
        Some(value) => num::num(value),
    }
}

fn ordered(op: Op, a: Option<&Value>, b: Option<&Value>) -> bool {
    let order = match (a, b) {
        (Some(Value::String(a)), Some(Value::String(b))) => Some(a.cmp(b)),
        _ => number(a).partial_cmp(&number(b)),
    };
    order.is_some_and(|order| match op {
        Op::Less => order.is_lt(),
        Op::Greater => order.is_gt(),
        Op::LessEqual => order.is_le(),
        _ => order.is_ge(),
    })
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn unexpected(&self) -> BadPredicate {
        BadPredicate::Unexpected(self.at)
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn or(&mut self) -> Result<Node, BadPredicate> {
        let mut node = self.and()?;
        while self.eat("||") {
            node = Node::Or(Box::new(node), Box::new(self.and()?));
        }
        Ok(node)
    }

    fn and(&mut self) -> Result<Node, BadPredicate> {
        let mut node = self.equality()?;
        while self.eat("&&") {
            node = Node::And(Box::new(node), Box::new(self.equality()?));
        }
        Ok(node)
    }

    fn binary(
        &mut self,
        ops: &[(&str, Op)],
        operand: fn(&mut Self) -> Result<Node, BadPredicate>,
    ) -> Result<Node, BadPredicate> {
        let mut node = operand(self)?;
        while let Some((_, op)) = ops.iter().find(|(token, _)| self.eat(token)) {
            node = Node::Compare(*op, Box::new(node), Box::new(operand(self)?));
        }
        Ok(node)
    }

    fn equality(&mut self) -> Result<Node, BadPredicate> {
        const OPS: [(&str, Op); 4] =
            [("===", Op::Same), ("!==", Op::NotSame), ("==", Op::Equal), ("!=", Op::NotEqual)];
        self.binary(&OPS, Self::relation)
    }

    fn relation(&mut self) -> Result<Node, BadPredicate> {
        const OPS: [(&str, Op); 4] =
            [("<=", Op::LessEqual), (">=", Op::GreaterEqual), ("<", Op::Less), (">", Op::Greater)];
        self.binary(&OPS, Self::unary)
    }

    fn unary(&mut self) -> Result<Node, BadPredicate> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(BadPredicate::Deep);
        }
        let node = if self.eat("!") {
            Node::Not(Box::new(self.unary()?))
        } else if self.eat("(") {
            let node = self.or()?;
            if !self.eat(")") {
                return Err(self.unexpected());
            }
            node
        } else {
            self.primary()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn primary(&mut self) -> Result<Node, BadPredicate> {
        self.skip_space();
        let first = self.rest().chars().next();
        if let Some('"' | '\'') = first {
            return Ok(Node::Literal(Some(Value::String(self.string()?))));
        }
        if first.is_some_and(|c| c.is_ascii_digit() || c == '-' || c == '.') {
            return self.number();
        }
        let start = self.at;
        match self.name().as_deref() {
            Some("true") => Ok(Node::Literal(Some(Value::Bool(true)))),
            Some("false") => Ok(Node::Literal(Some(Value::Bool(false)))),
            Some("null") => Ok(Node::Literal(Some(Value::Null))),
            Some("undefined") => Ok(Node::Literal(None)),
            Some("server") => self.path(),
            _ => Err(BadPredicate::Unexpected(start)),
        }
    }

    fn path(&mut self) -> Result<Node, BadPredicate> {
        let mut path = Vec::new();
        loop {
            if self.eat(".") {
                self.skip_space();
                path.push(self.name().ok_or_else(|| self.unexpected())?);
            } else if self.eat("[") {
                self.skip_space();
                path.push(match self.rest().bytes().next() {
                    Some(b'"' | b'\'') => self.string()?,
                    _ => return Err(self.unexpected()),
                });
                if !self.eat("]") {
                    return Err(self.unexpected());
                }
            } else {
                return Ok(Node::Member(path));
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'))
            .unwrap_or(rest.len());
        let name = rest[..end].to_owned();
        self.at += end;
        (end > 0 && !name.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
    }

    fn number(&mut self) -> Result<Node, BadPredicate> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))
            .unwrap_or(rest.len());
        let value: f64 = rest[..end].parse().map_err(|_| self.unexpected())?;
        self.at += end;
        Ok(Node::Literal(Some(num::json(value))))
    }

    fn string(&mut self) -> Result<String, BadPredicate> {
        let start = self.at;
        let mut chars = self.rest().char_indices();
        let quote = chars.next().map(|(_, c)| c);
        let mut out = String::new();
        while let Some((i, c)) = chars.next() {
            match c {
                c if Some(c) == quote => {
                    self.at = start + i + 1;
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, c @ ('\\' | '\'' | '"'))) => out.push(c),
                    _ => return Err(BadPredicate::Unexpected(start + i)),
                },
                c => out.push(c),
            }
        }
        Err(BadPredicate::Unexpected(start))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, want: Result<bool, EvalError>) {
        let server = json!({
            "hostname": "cn1", "ram": 65536, "traits": {"ssd": true}, "reserved": false,
            "sysinfo": {"Live Image": "20180101T000000Z"}, "none": null,
        });
        let predicate = Predicate::parse(text).expect("the predicate parses");
        let got = predicate.test(&|name| server.get(name).map(|v| Cow::Owned(v.clone())));
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn predicates_evaluate() {
        check("server.hostname === 'cn1'", Ok(true));
        check("server['hostname'] == \"cn1\" && server.ram >= 65536", Ok(true));
        check(
            "!server.reserved && !(server.ram < 10 || server.ram > 1e5)"
                .replace("1e5", "100000")
                .as_str(),
            Ok(true),
        );
        check("server.traits.ssd", Ok(true));
        check("server.traits['hdd'] === undefined", Ok(true));
        check("server.missing == null", Ok(true));
        check("server.missing === null", Ok(false));
        check("server.missing.deep", Err(EvalError));
        check("server.none.deep", Err(EvalError));
        check("server.sysinfo['Live Image'] > '2017'", Ok(true));
        check("server.ram == '65536'", Ok(true));
        check("server.ram !== '65536'", Ok(true));
        check("false || 0", Ok(false));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "server.ram +", "process.exit()", "server.x()", "1 2", "(true", "'a", "server["]
        {
            assert!(Predicate::parse(text).is_err(), "{text}");
        }
        assert_eq!(Predicate::parse(&"!".repeat(100)).err(), Some(BadPredicate::Deep));
    }

    proptest::proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in ".{0,60}") {
            drop(Predicate::parse(&text));
        }
    }
}
