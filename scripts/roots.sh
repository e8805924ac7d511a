# Fresh minimal systems by debootstrap, for try-root, release-check and e2e/systemd_boot: source it after lib.sh, do not run it.

# mirror_of SYSTEM: of those that apt uses here, the first that has it, at its own place or beside the other system's.
mirror_of() {
    local url
    for url in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u); do
        case "${url%/}" in
        */debian | */ubuntu) url=${url%/} && url=${url%/*}/$1 ;;
        *) continue ;;
        esac
        if there "$url/dists/$2/InRelease"; then
            say "$url"
            return 0
        fi
    done
    return 1
}

# there URL: is there such a file?
there() { python3 -c 'import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method="HEAD"), timeout=30)' "$1" 2>/dev/null; }

# keyring_of SYSTEM FOLDER: the file of the keys that sign its releases: of this machine's own packages, else out of a package of
# Debian that apt itself has checked, got into the folder. Debian 12 has no package of Ubuntu's keys, Debian 13 has; an apt of its
# own asks for it.
keyring_of() (
    local name=$1-archive-keyring package=$1-archive-keyring url place=$2 options
    if [ -e "/usr/share/keyrings/$name.gpg" ]; then
        say "/usr/share/keyrings/$name.gpg"
        return 0
    fi
    [ "$1" != ubuntu ] || package=ubuntu-keyring
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || return 1
    url=$(mirror_of debian trixie) || return 1
    mkdir -p "$place/lists/partial" "$place/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$url" >"$place/sources"
    options=(-q -o "Dir::Etc::SourceList=$place/sources" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$place/lists"
        -o "Dir::Cache=$place" -o "Dir::Cache::archives=$place/archives" -o APT::Sandbox::User=root)
    cd "$place" && retry apt-get "${options[@]}" update >&2 && retry apt-get "${options[@]}" download "$package" >&2 &&
        dpkg-deb -x "$package"_*.deb keys && [ -e "keys/usr/share/keyrings/$name.gpg" ] &&
        say "$place/keys/usr/share/keyrings/$name.gpg"
)

# make_root SYSTEM SUITE FOLDER MIRROR KEYRING [OPTION …]: the options are debootstrap's.
make_root() {
    local script=sid scripts
    [ "$1" = debian ] || script=gutsy
    scripts=$(mktemp -d)
    # A release that is newer than debootstrap is made as its predecessors are.
    cp -r /usr/share/debootstrap/. "$scripts"
    [ -e "$scripts/scripts/$2" ] || ln -s "$script" "$scripts/scripts/$2"
    rm -rf --one-file-system "$3"
    local status=0
    DEBOOTSTRAP_DIR=$scripts debootstrap --variant=minbase --keyring="$5" "${@:6}" "$2" "$3" "$4" || status=$?
    rm -rf "$scripts"
    return "$status"
}

# like_here FOLDER: names and packages are found there as they are here.
like_here() {
    local file
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ ! -e "$file" ] || cp -L "$file" "$1$file"
    done
    mkdir -p "$1/usr/local/share/ca-certificates" # and whom this machine trusts besides
    find /usr/local/share/ca-certificates -name '*.crt' -exec cp -L -t "$1/usr/local/share/ca-certificates" {} + 2>/dev/null || true
}

# network_of_here: NAME=VALUE of the variables that lead to the network, a word each.
network_of_here() {
    local name
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST; do
        [ -z "${!name:-}" ] || say "$name=${!name}"
    done
}
