# shellcheck shell=bash
# The kernel's side of an image: uncompressed vmlinux, and the modules listed in images/modules
# with all that they depend on. Expects setup.sh, cache.sh, apt.sh and tree.sh.

# kernel_release TREE: prints the release of the one kernel in an unpacked kernel tree.
kernel_release() {
    local -a dirs=("$1"/usr/lib/modules/*)
    ((${#dirs[@]} == 1)) || die "Expected one kernel, found: ${dirs[*]##*/}"
    printf '%s\n' "${dirs[0]##*/}"
}

# field FILE OFFSET SIZE: prints a little-endian unsigned integer.
field() {
    od -An -t "u$3" -j "$2" -N "$3" --endian=little "$1" | tr -d ' '
}

# extract_vmlinux TOOLS BZIMAGE: writes the ELF image inside a bzImage to stdout. Offsets are
# those of the Linux/x86 boot protocol, "The Real-Mode Kernel Header".
extract_vmlinux() {
    local tools=$1 image=$2 setup_sectors start length magic
    [[ $(field "$image" $((0x202)) 2) -ge $((0x208)) ]] ||
        die "$(basename "$image") is no bzImage with a payload offset"
    setup_sectors=$(field "$image" $((0x1f1)) 1)
    start=$(((${setup_sectors/#0/4} + 1) * 512 + $(field "$image" $((0x248)) 4)))
    # The payload ends in four bytes of uncompressed size that are not of the compressed stream.
    length=$(($(field "$image" $((0x24c)) 4) - 4))
    magic=$(od -An -t x1 -j "$start" -N 4 "$image" | tr -d ' ')
    dd if="$image" bs=1M iflag=skip_bytes,count_bytes skip="$start" count="$length" status=none |
        case $magic in
        fd377a58) run "$tools" xz -dc ;;
        02214c18) run "$tools" lz4 -dcq ;;
        28b52ffd) run "$tools" zstd -dcq ;;
        1f8b*) gzip -dcq ;;
        7f454c46) cat ;;
        *) die "Unknown compression of $(basename "$image"): $magic" ;;
        esac
}

# module_files TREE RELEASE: prints the files of images/modules and their dependencies,
# relative to the release's directory. Modules built into this kernel need none.
module_files() {
    local dir=$1/usr/lib/modules/$2
    sed -E 's/#.*//' "$(repo_root)/images/modules" | tr -s ' ' '\n' |
        awk -v builtin="$dir/modules.builtin" -v depends="$dir/modules.dep" '
            function name_of(path) { sub(/.*\//, "", path); sub(/\.ko.*/, "", path); gsub(/-/, "_", path); return path }
            BEGIN {
                while ((getline line < builtin) > 0) built[name_of(line)] = 1
                while ((getline line < depends) > 0) {
                    split(line, part, ":")
                    path[name_of(part[1])] = part[1]
                    need[name_of(part[1])] = part[2]
                }
            }
            $0 == "" { next }
            {
                optional = sub(/^\?/, "")
                if ($0 in path) {
                    print path[$0]
                    count = split(need[$0], file, " ")
                    for (i = 1; i <= count; i++) print file[i]
                } else if (!($0 in built) && !optional) {
                    print "The kernel has no module " $0 > "/dev/stderr"
                    failed = 1
                }
            }
            END { exit failed }' | LC_ALL=C sort -u
}

# install_modules TOOLS TREE ROOT: copies the listed modules, uncompressed, and indexes them.
install_modules() {
    local tools=$1 tree=$2 root=$3 release from to file files
    release=$(kernel_release "$tree")
    from=$tree/usr/lib/modules/$release
    to=$root/usr/lib/modules/$release
    run "$tools" depmod -b "$tree" "$release"
    files=$(module_files "$tree" "$release")
    mkdir -p "$to"
    while read -r file; do
        mkdir -p "$to/$(dirname "$file")"
        case $file in
        *.ko) cp "$from/$file" "$to/$file" ;;
        *.ko.xz) run "$tools" xz -dc "$from/$file" >"$to/${file%.xz}" ;;
        *.ko.zst) run "$tools" zstd -dcq "$from/$file" >"$to/${file%.zst}" ;;
        *) die "Unknown module compression: $file" ;;
        esac
    done <<<"$files"
    cp "$from"/modules.{builtin,builtin.modinfo} "$to"
    sed -E 's/\.(xz|zst)$//' "$from/modules.order" >"$to/modules.order"
    run "$tools" depmod -b "$root" "$release"
}
