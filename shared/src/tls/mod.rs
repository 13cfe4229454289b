//! Certificates and keys from files, made into rustls configurations (ring provider).

mod certificate_name;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub use certificate_name::certificate_name;

/// TLS material can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file can't be read.
    #[error("read {what} from {path}")]
    Read {
        /// `certificate`, `key` or `CA`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// A PEM file without what was looked for.
    #[error("{path} holds no {what}")]
    Empty {
        /// `certificate`, `key` or `CA`.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A CA certificate that rustls refuses.
    #[error("use the CA in {path}")]
    Ca {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// Certificate and key that don't fit each other.
    #[error("use the certificate in {certificate} with the key in {key}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The client CA can't be used to check clients.
    #[error("check clients against the CA in {path}")]
    Verifier {
        /// The CA's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: VerifierBuilderError,
    },
    /// Protocol versions and cipher suites don't fit; a defect of the build.
    #[error("set up TLS")]
    Setup(#[source] rustls::Error),
    /// The machine has no certificate authorities, and none was configured.
    #[error(
        "this machine trusts no certificate authority: install ca-certificates or name a CA file"
    )]
    NoRoots,
}

/// A certificate chain and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The key (PKCS#8, PKCS#1 or SEC1).
    pub key: PathBuf,
}

/// What a server asks of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate.
    #[default]
    None,
    /// A certificate is checked against this CA if the client offers one.
    Optional(PathBuf),
    /// Only clients with a certificate of this CA get in.
    Required(PathBuf),
}

/// Makes ring the process's crypto provider, for libraries that ask for it; repeating is harmless.
pub fn install_provider() {
    // Err means that another call was first, which installed the same.
    drop(provider().install_default());
}

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// A server's configuration; offers HTTP/1.1 only, which websockets need.
///
/// # Errors
/// [`TlsError`], naming the file at fault.
pub fn server(identity: &Identity, clients: &ClientAuth) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let verifier = |path: &Path, optional: bool| {
        let roots = Arc::new(roots_of(path)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
        let verifier = if optional { verifier.allow_unauthenticated() } else { verifier };
        verifier.build().map_err(|source| TlsError::Verifier { path: path.to_owned(), source })
    };
    let builder = match clients {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Optional(ca) => builder.with_client_cert_verifier(verifier(ca, true)?),
        ClientAuth::Required(ca) => builder.with_client_cert_verifier(verifier(ca, false)?),
    };
    let (chain, key) = load(identity)?;
    let mut config = builder.with_single_cert(chain, key).map_err(|e| mismatch(identity, e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A client's configuration; without a `ca` the machine's own authorities are trusted.
///
/// # Errors
/// [`TlsError`], naming the file at fault.
pub fn client(
    ca: Option<&Path>,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = ca.map_or_else(machine_roots, roots_of)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = load(identity)?;
            builder.with_client_auth_cert(chain, key).map_err(|e| mismatch(identity, e))?
        }
    };
    Ok(Arc::new(config))
}

fn mismatch(identity: &Identity, source: rustls::Error) -> TlsError {
    let Identity { certificate, key } = identity.clone();
    TlsError::Pair { certificate, key, source }
}

fn load(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates("certificate", &identity.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&identity.key).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::Empty { what: "key", path: identity.key.clone() },
        source => TlsError::Read { what: "key", path: identity.key.clone(), source },
    })?;
    Ok((chain, key))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::Read { what, path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(unreadable)?;
    if found.is_empty() {
        return Err(TlsError::Empty { what, path: path.to_owned() });
    }
    Ok(found)
}

fn roots_of(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("CA", path)? {
        let refused = |source| TlsError::Ca { path: path.to_owned(), source };
        roots.add(certificate).map_err(refused)?;
    }
    Ok(roots)
}

fn machine_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate authority of this machine is unreadable");
    }
    // Machines carry odd old certificates; the good ones count.
    let (usable, _odd) = roots.add_parsable_certificates(found.certs);
    if usable == 0 { Err(TlsError::NoRoots) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Pki {
        folder: tempfile::TempDir,
        identity: Identity,
    }

    fn pki() -> Pki {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let identity =
            Identity { certificate: folder.path().join("c.pem"), key: folder.path().join("k.pem") };
        fs::write(&identity.certificate, made.cert.pem()).unwrap();
        fs::write(&identity.key, made.signing_key.serialize_pem()).unwrap();
        Pki { folder, identity }
    }

    #[test]
    fn good_files_make_configurations() {
        let Pki { identity, folder: _kept } = pki();
        let ca = identity.certificate.clone();
        server(&identity, &ClientAuth::None).unwrap();
        server(&identity, &ClientAuth::Optional(ca.clone())).unwrap();
        server(&identity, &ClientAuth::Required(ca.clone())).unwrap();
        client(Some(&ca), Some(&identity)).unwrap();
    }

    #[test]
    fn errors_name_the_file() {
        let Pki { folder, identity } = pki();
        let other = pki().identity.certificate;
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        let check = |certificate: &Path, key: &Path, wanted: &str| {
            let identity = Identity { certificate: certificate.into(), key: key.into() };
            let text = server(&identity, &ClientAuth::None).unwrap_err().to_string();
            assert!(text.contains(wanted), "{text}");
        };
        check(&other, &identity.key, "read certificate from");
        check(&empty, &identity.key, "empty.pem holds no certificate");
        check(&identity.certificate, &empty, "empty.pem holds no key");
        let second = pki();
        check(&identity.certificate, &second.identity.key, "use the certificate in");
        let text = client(Some(&empty), None).unwrap_err().to_string();
        assert!(text.contains("empty.pem holds no CA"), "{text}");
    }
}
