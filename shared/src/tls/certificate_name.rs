//! Whose a certificate is.

use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The object identifier of a common name (2.5.4.3), as it is encoded.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// Tags of the parts of a name.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// Tags of texts that are, or contain, ASCII: UTF8String, PrintableString, TeletexString, IA5String.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// Longest name that is told, characters.
const MAX_CHARS: usize = 200;

/// The common name of a certificate's subject; without one its first DNS name. Control characters
/// are left out, because the name goes into logs.
#[must_use]
pub fn certificate_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let found = common_name(certificate.subject())
        .or_else(|| certificate.valid_dns_names().next().map(str::to_owned))?;
    let name: String = found.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    Some(name).filter(|name| !name.is_empty())
}

/// The last common name of a sequence of sets of attributes: the most specific comes last.
fn common_name(subject: &[u8]) -> Option<String> {
    let mut name = None;
    let mut rest = subject;
    while let Some((SET, mut attributes, after)) = element(rest) {
        while let Some((SEQUENCE, attribute, others)) = element(attributes) {
            if let Some((OBJECT, kind, value)) = element(attribute)
                && kind == COMMON_NAME
                && let Some((tag, text, _)) = element(value)
                && TEXTS.contains(&tag)
            {
                name = Some(String::from_utf8_lossy(text).into_owned());
            }
            attributes = others;
        }
        rest = after;
    }
    name
}

/// The first element: its tag, its content, and what comes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn named(common: Option<&str>, dns: &[&str]) -> Option<String> {
        let dns: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(dns).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate_name(made.der())
    }

    #[test]
    fn a_certificate_says_whose_it_is() {
        assert_eq!(named(Some("operator Jörg"), &[]).as_deref(), Some("operator Jörg"));
        assert_eq!(named(Some("a"), &["b.example"]).as_deref(), Some("a"));
        assert_eq!(named(None, &["b.example"]).as_deref(), Some("b.example"));
        assert_eq!(named(None, &[]), None);
        let long = "x".repeat(300);
        assert_eq!(named(Some(&long), &[]).map(|name| name.len()), Some(MAX_CHARS));
        assert_eq!(named(Some("a\u{1b}[31m\nb"), &[]).as_deref(), Some("a[31mb"));
    }

    #[test]
    fn what_is_no_certificate_has_no_name() {
        assert_eq!(certificate_name(&CertificateDer::from(vec![0x30, 0x82])), None);
        for cut in 0..8 {
            assert_eq!(common_name(&[SET, 0x82, 0xff, 0xff, SEQUENCE, 0x81, 2, 3][..cut]), None);
        }
    }
}
