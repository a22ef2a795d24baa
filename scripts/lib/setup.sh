# shellcheck shell=bash
# Helpers shared by scripts/* and images/*. Source it after `set -euo pipefail`.
# Nothing here writes to stdout except repo_root, so callers may print results there.

# Prints the absolute path of the repository.
repo_root() {
    (cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
}

# progress TEXT...: one line about what is going on, on stderr.
progress() {
    printf '==> %s\n' "$*" >&2
}

# warn TEXT...: something is off but we go on.
warn() {
    printf 'warning: %s\n' "$*" >&2
}

# die TEXT...: says why and leaves with status 3, on which nothing more is said.
die() {
    printf 'error: %s\n' "$*" >&2
    exit 3
}

# Any other failure says where it was.
report_failure() {
    (($1 == 3)) || printf 'error: status %s at %s:%s\n' "$1" "$2" "$3" >&2
}
set -E
trap 'report_failure "$?" "${BASH_SOURCE[0]}" "$LINENO"' ERR

# need_cmd COMMAND HINT...: leaves with a message that names the hint if COMMAND is missing.
need_cmd() {
    local command=$1
    shift
    command -v "$command" >/dev/null || die "'$command' is missing: $*"
}

# Prints those of the named packages that are not installed, one a line.
missing_packages() {
    local package
    for package; do
        # shellcheck disable=SC2016 # a dpkg-query format, not a shell variable
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            printf '%s\n' "$package"
    done
}

# need_packages PACKAGE...: installs what is missing, through sudo when not root.
# The package index is refreshed only if the first attempt fails.
need_packages() {
    need_cmd apt-get "set-up needs a Debian-like system; install by hand: $*"
    local -a missing as_root=()
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]})) || return 0
    if ((EUID)); then
        command -v sudo >/dev/null ||
            die "Need root to install packages. Run as root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    # Another installation may be under way: wait for its lock.
    local -a apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get -qq -o DPkg::Lock::Timeout=300)
    local -a install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
    progress "Installing ${missing[*]}"
    "${install[@]}" >/dev/null 2>&1 && return
    "${apt[@]}" update >&2 || warn "The package index could not be refreshed"
    "${install[@]}" >&2 || die "Could not install: ${missing[*]}"
}
