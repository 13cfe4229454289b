#!/bin/bash
# Builds muster-zfs against Debian's libzfs_core, for the guest with OpenZFS.
#
#   scripts/build-zfs-helper.sh        prints the program
#
# Library and headers are in contrib, which is not among every machine's sources: they are unpacked, not
# installed, into ${MUSTER_CACHE:-${XDG_CACHE_HOME:-~/.cache}/muster}/zfs-library. Needs no root. Exits with
# 2 when they can't be had, which says nothing about Muster.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
what="zfs library"
failed=2
# shellcheck source=scripts/build-cache.sh
. "$here/build-cache.sh"
packages=(libzfslinux-dev libzfs4linux libnvpair3linux)
# Those that the linker asks for.
libraries=(zfs_core nvpair zfs)
folder="lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)"

open_cache zfs-library
# shellcheck source=scripts/debian-contrib.sh
. "$here/debian-contrib.sh"
version=
if private_apt "$cache/apt"; then
    version="$(apt-cache "${apt_private[@]}" show --no-all-versions libzfslinux-dev | sed -n 's/^Version: //p')"
fi
tree="$cache/tree"
if [ -z "$version" ]; then
    [ -s "$tree/version" ] || die "the package lists can't be fetched, or lack libzfslinux-dev"
    say "the package lists can't be used; taking $(cat "$tree/version")"
elif [ "$(cat "$tree/version" 2>/dev/null)" != "$version" ]; then
    say "fetching $version"
    make_room 128
    (cd "$work" && apt-get "${apt_private[@]}" -qq download "${packages[@]}" >&2) ||
        die "the packages could not be fetched"
    for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/tree"; done
    # The links of the package lead to where it would be installed.
    for name in "${libraries[@]}"; do
        file="$(find "$work/tree/$folder" -type f -name "lib$name.so.*")"
        [ -n "$file" ] || die "the packages hold no lib$name"
        ln -s "${file##*/}" "$work/tree/$folder/lib$name.so"
    done
    echo "$version" >"$work/tree/version"
    rm -rf "$tree"
    mv "$work/tree" "$tree"
fi

# A folder of its own: with another set of features everything below would be built anew.
target="$here/../target/zfs-helper"
mkdir -p "$target"
target="$(cd "$target" && pwd)"
(
    cd "$here/.."
    export PKG_CONFIG_SYSROOT_DIR="$tree" PKG_CONFIG_LIBDIR="$tree/usr/$folder/pkgconfig"
    # It only passes calls on: what the optimizer would take is not worth it.
    cargo build --locked -p muster-zfs-helper --features lzc --target-dir "$target" \
        --config 'profile.dev.package."*".opt-level = 0' >&2
)
echo "$target/debug/muster-zfs"
