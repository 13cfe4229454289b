#!/bin/bash
# Builds OpenZFS' kernel modules for the kernel of the full guest, from the source in Debian's zfs-dkms.
#
#   scripts/build-zfs-modules.sh        prints the folder that then holds
#     modules/*.ko         the modules, without what only debuggers read
#     linux-image-*.deb    the kernel that they are for: the mirror drops old ones
#     versions             of both
#
# The folder lies outside the checkout, in ${MUSTER_CACHE:-${XDG_CACHE_HOME:-~/.cache}/muster}/zfs-modules,
# under a name made of these versions: nothing is built again while they stay the same. It mixes the
# licences GPL-2 and CDDL, so it stays on the machine that built it.
# Needs no root, and installs nothing; takes minutes, once. Exits with 2 when they can't be built.
set -Eeuo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
what="zfs modules"
# Whatever fails says nothing about Muster.
failed=2
# shellcheck source=scripts/build-cache.sh
. "$here/build-cache.sh"
# zfs brings in the others; without one of these it does not load.
modules=(avl/zavl icp/icp lua/zlua nvpair/znvpair spl/spl unicode/zunicode zcommon/zcommon zfs/zfs
    zstd/zzstd)

trap 'die "line $LINENO failed"' ERR

need apt-get apt
need dpkg-deb dpkg
need bc bc
need gcc build-essential
need make build-essential
need depmod kmod
need strip binutils
need flock util-linux
check_needed
open_cache zfs-modules

# ---- anything to do? ----
# shellcheck source=scripts/debian-contrib.sh
. "$here/debian-contrib.sh"
kernel=
if private_apt "$cache/apt"; then
    kernel="$(apt-cache "${apt_private[@]}" depends linux-image-cloud-amd64 |
        sed -n 's/.*Depends: \(linux-image-.*-cloud-amd64\).*/\1/p' | head -n 1)"
fi
if [ -z "$kernel" ]; then
    out="$(newest_build versions)"
    [ -n "$out" ] || die "the package lists can't be fetched, or lack the kernel"
    say "the package lists can't be used; taking $out"
    echo "$out"
    exit 0
fi
release="${kernel#linux-image-}"
version() { apt-cache "${apt_private[@]}" show --no-all-versions "$1" | sed -n 's/^Version: //p'; }
versions="$kernel $(version "$kernel") zfs-dkms $(version zfs-dkms)"
# This script is part of the name, by what it builds and how.
out="$cache/$({ echo "$versions" && cat "${BASH_SOURCE[0]}"; } | sha256sum | cut -c1-16)"
if use_build "$out" versions; then exit 0; fi
make_room 1024

# ---- sources ----
say "fetching $versions"
fetch="$work/fetch"
mkdir "$fetch" "$work/ready"
kbuild="linux-kbuild-$(cut -d. -f1,2 <<<"$release")"
headers=("linux-headers-$release" "linux-headers-${release%-cloud-amd64}-common" "$kbuild")
(cd "$fetch" && apt-get "${apt_private[@]}" -qq download "$kernel" "${headers[@]}" zfs-dkms >&2) ||
    die "the packages could not be fetched"
tree="$work/tree"
for package in "${headers[@]}" zfs-dkms; do dpkg-deb -x "$fetch/${package}"_*.deb "$tree"; done
common="$tree/usr/src/linux-headers-${release%-cloud-amd64}-common"
objects="$tree/usr/src/linux-headers-$release"
# The headers expect to be installed.
sed -i "s#/usr/src/#$tree/usr/src/#" "$objects/Makefile"
if [ -f "$objects/.kernelvariables" ]; then
    sed -i "s#/usr/src/#$tree/usr/src/#g" "$objects/.kernelvariables"
fi

# ---- build ----
source="$(find "$tree/usr/src" -mindepth 1 -maxdepth 1 -type d -name 'zfs-[0-9]*')"
[ -x "$source/configure" ] || die "zfs-dkms holds no source tree"
build() {
    cd "$source"
    ./configure --with-config=kernel --with-linux="$common" --with-linux-obj="$objects"
    make -j"$(nproc)" -C module
}
say "building for $release (minutes, once)"
from=$SECONDS
if ! (build) >"$work/log" 2>&1; then
    tail -n 30 "$work/log" >&2
    # More than the end is kept: the reason may be in a log of configure.
    cp "$work/log" "$cache/failed.log"
    [ ! -f "$source/config.log" ] || cat "$source/config.log" >>"$cache/failed.log"
    die "OpenZFS could not be built for $release; all of it: $cache/failed.log"
fi
mkdir "$work/ready/modules"
for module in "${modules[@]}"; do
    file="$work/ready/modules/${module##*/}.ko"
    strip --strip-debug -o "$file" "$source/module/$module.ko"
done

# ---- in place, whole or not at all ----
mv "$fetch/$kernel"_*.deb "$work/ready/"
echo "$versions" >"$work/ready/versions"
rm -rf "$out"
mv "$work/ready" "$out"
keep_build "$out"
say "built $out in $((SECONDS - from)) s ($(du -sm "$out/modules" | cut -f1) MiB)"
echo "$out"
