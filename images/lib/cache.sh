# shellcheck shell=bash
# The user's cache: content-addressed outputs, one lock, a pointer per name to what is current.
# Expects scripts/lib/setup.sh, and inherit_errexit, so that a failure inside $(...) counts.

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/flownic
# How long resolved versions count as current, and unused outputs are kept.
FRESH_MINUTES=$((24 * 60))
KEEP_DAYS=14

# Reads stdin, prints a key of 16 hex digits.
key_of() {
    sha256sum | cut -c1-16
}

# key_of_files FILE...: a key over names and contents.
key_of_files() {
    (cd "$(repo_root)" && sha256sum -- "${@#"$(repo_root)"/}") | key_of
}

# younger_than MINUTES FILE: true if FILE exists and was modified within MINUTES.
younger_than() {
    [[ -n $(find "$2" -maxdepth 0 -mmin "-$1" 2>/dev/null) ]]
}

# current NAME RECIPE: prints the path that NAME points to, if it is fresh and made by RECIPE.
current() {
    local pointer=$CACHE/current/$1 recipe path
    younger_than "$FRESH_MINUTES" "$pointer" || return 1
    { read -r recipe && read -r path; } <"$pointer" || return 1
    [[ $recipe == "$2" && -e $path ]] || return 1
    printf '%s\n' "$path"
}

# cached NAME RECIPE MAKER ARG...: prints the current path of NAME; if there is none, MAKER
# makes it (or finds it under its content key) and prints it. One maker runs at a time.
cached() {
    local name=$1 recipe=$2 path
    shift 2
    current "$name" "$recipe" && return
    mkdir -p "$CACHE"/{apt,current,debs,images,modules,trees}
    # The descriptor is inherited, so that a maker that needs another output does not wait for itself.
    if [[ -z ${CACHE_LOCKED:-} ]]; then
        exec {CACHE_LOCKED}>"$CACHE/lock"
        flock -n "$CACHE_LOCKED" || {
            progress "Waiting for another run that fills $CACHE"
            flock "$CACHE_LOCKED"
        }
        current "$name" "$recipe" && return
    fi
    path=$("$@")
    printf '%s\n%s\n' "$recipe" "$path" >"$CACHE/current/$name.new"
    mv "$CACHE/current/$name.new" "$CACHE/current/$name"
    prune
    printf '%s\n' "$path"
}

# begin DIR: prints a fresh directory beside DIR; finish NEW DIR puts it in place in one step.
begin() {
    rm -rf "$1.new"
    mkdir "$1.new"
    printf '%s\n' "$1.new"
}

finish() {
    rm -rf "$2"
    mv "$1" "$2"
    touch "$2"
}

# Removes outputs that no pointer names and that were not made or found again for KEEP_DAYS.
prune() {
    local old
    find "$CACHE"/{images,modules,trees,debs} -mindepth 1 -maxdepth 1 -mtime "+$KEEP_DAYS" |
        while read -r old; do
            grep -qrF "$old" "$CACHE/current" || rm -rf "$old"
        done
}
