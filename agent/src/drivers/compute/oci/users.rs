//! Users and groups of a container, by its own files. Those are its image's: hostile, and read only
//! within its root.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use muster_shared::wire::Code;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, fchown};

use crate::drivers::DriverError;
use crate::host::idmap::IdRange;

/// Longest file of users or groups that is read, bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// Whose a process is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Further groups.
    pub(super) groups: Vec<u32>,
}

/// Makes the ends of pipes root's of a container: its programs open them anew, by the names that they have
/// in `/dev`.
pub(super) fn give(ends: &[OwnedFd], ids: Option<IdRange>) -> io::Result<()> {
    let Some(ids) = ids else { return Ok(()) };
    let (user, group) = (Uid::from_raw(ids.first), Gid::from_raw(ids.first));
    ends.iter().try_for_each(|end| Ok(fchown(end, Some(user), Some(group))?))
}

/// Looks a user up, e.g. `www-data`, `33`, `33:33`; `None` is root.
///
/// # Errors
/// `InvalidParameters`: there is no such user or group; or the files could not be read.
pub(super) fn find(root: &Path, wanted: Option<&str>) -> Result<Ids, DriverError> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
        return Ok(Ids::default());
    };
    let failed =
        |error| DriverError::failed(format!("read the users of {}", root.display()), error);
    let passwd = read_within(root, "etc/passwd").map_err(failed)?;
    let group = read_within(root, "etc/group").map_err(failed)?;
    ids(wanted, &passwd, &group).map_err(|unknown| {
        let text = format!("user: the container has no {unknown}");
        DriverError::refused(Code::InvalidParameters, text)
    })
}

/// The lines of these files are `name:password:id:…`.
fn ids(wanted: &str, passwd: &str, group: &str) -> Result<Ids, String> {
    let (user, named_group) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted, None),
    };
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<u32>().ok());
    let by_number: Option<u32> = user.parse().ok();
    let found = passwd.lines().map(fields).find(|line| {
        let name = line.first().map(String::as_str);
        name == Some(user) || (by_number.is_some() && number(line.get(2)) == by_number)
    });
    let uid = by_number.or_else(|| number(found.as_ref()?.get(2)));
    let uid = uid.ok_or_else(|| format!("user {user:?}"))?;
    let name = found.as_ref().and_then(|line| line.first()).map(String::as_str);
    let own_gid = number(found.as_ref().and_then(|line| line.get(3)));
    let Some(named) = named_group else {
        let is_member = |line: &Vec<String>| {
            let members = line.get(3).map_or("", String::as_str);
            name.is_some_and(|name| members.split(',').any(|member| member == name))
        };
        let groups = group.lines().map(fields).filter(is_member);
        let groups = groups.filter_map(|line| number(line.get(2))).collect();
        return Ok(Ids { uid, gid: own_gid.unwrap_or(0), groups });
    };
    let of_name = || {
        let line = group.lines().map(fields).find(|line| line.first().is_some_and(|n| n == named));
        number(line?.get(2))
    };
    let gid = named.parse().ok().or_else(of_name);
    let gid = gid.ok_or_else(|| format!("group {named:?}"))?;
    Ok(Ids { uid, gid, groups: Vec::new() })
}

/// A text file of a container; one that is not there is empty. No link leads out of the root.
fn read_within(root: &Path, path: &str) -> io::Result<String> {
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new()
        // A pipe in its place is not waited for.
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    let file = match openat2(&root, path, how) {
        Ok(file) => std::fs::File::from(file),
        Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => return Ok(String::new()),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    let mut content = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/srv:/bin/false\nbad\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nlogs:x:40:web,other\nadm:x:4:other\n";

    #[test]
    fn users_are_names_or_numbers_with_or_without_groups() {
        let of = |wanted: &str| ids(wanted, PASSWD, GROUP);
        let ids = |uid, gid, groups: &[u32]| Ok(Ids { uid, gid, groups: groups.to_vec() });
        assert_eq!(of("web"), ids(33, 34, &[40]));
        assert_eq!(of("33"), ids(33, 34, &[40]));
        assert_eq!(of("1000"), ids(1000, 0, &[]));
        assert_eq!(of("web:logs"), ids(33, 40, &[]));
        assert_eq!(of("5:6"), ids(5, 6, &[]));
        assert_eq!(of("nobody"), Err("user \"nobody\"".to_owned()));
        assert_eq!(of("web:wheel"), Err("group \"wheel\"".to_owned()));
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("passwd"), "evil:x:7:7::/:/\n").unwrap();
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::os::unix::fs::symlink(outside.path().join("passwd"), etc.join("passwd")).unwrap();
        assert_eq!(find(root.path(), None).unwrap(), Ids::default());
        let error = find(root.path(), Some("evil")).unwrap_err().to_string();
        assert!(error.contains("no user \"evil\""), "{error}");
        std::fs::remove_file(etc.join("passwd")).unwrap();
        std::fs::write(etc.join("passwd"), "own:x:8:9::/:/\n").unwrap();
        assert_eq!(find(root.path(), Some("own")).unwrap().uid, 8);
    }
}
