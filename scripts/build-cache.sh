# To be sourced by a script that builds something outside the checkout, where it is kept while what it is
# made of stays the same. Set before:
#   what       what is built, for messages
#   failed     the exit code of a build that fails
#
#   need COMMAND PACKAGE      notes a package that is missing
#   check_needed              ends the script if there is one
#   open_cache NAME           sets `cache`, a folder of this name; nobody else builds there until the script ends
#   newest_build FILE         prints the folder of the build that has this file and was used last
#   use_build FOLDER FILE     prints a build that has this file, which is used from now on; false without
#   make_room MIB             sets `work`, a folder that goes with the script; ends it if there is less room
#   keep_build FOLDER         removes other builds that nobody used for a day, and what was cut off

say() { echo "$what: $*" >&2; }
die() {
    echo "$what: error: $*" >&2
    exit "$failed"
}

missing=()
need() {
    PATH="$PATH:/usr/sbin:/sbin" type -P "$1" >/dev/null || missing+=("$2 (for $1)")
}
check_needed() {
    if [ "${#missing[@]}" -gt 0 ]; then
        die "missing packages: $(printf '%s, ' "${missing[@]}" | sed 's/, $//'); scripts/setup.sh installs them"
    fi
    export PATH="$PATH:/usr/sbin:/sbin"
}

open_cache() {
    cache="${MUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muster}/$1"
    mkdir -p "$cache"
    cache="$(cd "$cache" && pwd)"
    exec 9>"$cache/lock"
    flock 9
}

newest_build() {
    find "$cache" -mindepth 2 -maxdepth 2 -name "$1" -printf '%h\n' |
        xargs -r -d '\n' stat --format '%Y %n' | sort -n | tail -n 1 | cut -d' ' -f2-
}

use_build() {
    [ -s "$1/$2" ] || return 1
    say "up to date: $1"
    touch "$1"
    echo "$1"
}

make_room() {
    local free_mib
    free_mib="$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')"
    [ "$free_mib" -ge "$1" ] || die "$cache has $free_mib MiB free, $1 are needed"
    # No colon and no space in the name: make and autoconf stumble over them.
    work="$(mktemp -d "$cache/work.XXXXXX")"
    trap 'rm -rf "$work"' EXIT
}

# Whoever still has one open keeps it.
keep_build() {
    find "$cache" -mindepth 1 -maxdepth 1 -type d ! -path "$1" ! -path "$work" ! -path "$cache/apt" \
        -mmin +1440 -exec rm -rf {} +
}
