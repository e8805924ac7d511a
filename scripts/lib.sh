# Shared by the scripts of this folder: source it, do not run it.
#
# ROOT is the checkout. Everything that scripts make lies in build*/ and .cache/ below it, or in a
# temporary directory that they remove.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${SLUICE_CACHE:-$ROOT/.cache}
# The release of Debian whose libc libraries for others are linked with: it has glibc 2.31, of which they take what 2.28 has.
OLDER_LIBC=${SLUICE_OLDER_LIBC:-bullseye}
# python3 of the distribution is enough; this only keeps it from littering the checkout.
export PYTHONDONTWRITEBYTECODE=1

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# retry COMMAND …: for what the network has a part in; up to three times, with pauses.
retry() {
    local pause
    for pause in 5 20; do
        if "$@"; then return 0; fi
        sleep "$pause"
    done
    "$@"
}

# --help, as the first argument of any script that sources this: its head comment.
case "${1:-}" in
-h | --help)
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
    exit 0
    ;;
esac

# SLUICE_BUILD_CA: a PEM file with the authority of a proxy that looks into TLS. What fetches believes it besides those
# that the machine knows; a file that is not there, as in builds without the secret, is none.
[ -s "${SLUICE_BUILD_CA:-}" ] || unset SLUICE_BUILD_CA
if [ -n "${SLUICE_BUILD_CA:-}" ] && [ -z "${SLUICE_BUILD_TRUST:-}" ]; then
    mkdir -p "$CACHE"
    for known in "${PIP_CERT:-}" /etc/ssl/certs/ca-certificates.crt "$SLUICE_BUILD_CA"; do
        [ ! -s "$known" ] || { cat "$known" && echo; }
    done >"$CACHE/trust.pem.$$"
    mv "$CACHE/trust.pem.$$" "$CACHE/trust.pem"
    export SLUICE_BUILD_CA SLUICE_BUILD_TRUST=$CACHE/trust.pem PIP_CERT=$CACHE/trust.pem
fi

# apt_trust: the lines of an apt configuration for it.
apt_trust() { [ -z "${SLUICE_BUILD_TRUST:-}" ] || printf 'Acquire::https::CAInfo "%s";\n' "$SLUICE_BUILD_TRUST"; }

# distrusted LOG: did it end because an authority is unknown? Trying again is no use then.
distrusted() { grep -qiE 'CERTIFICATE_VERIFY_FAILED|certificate verif(y|ication) failed|certificate is NOT trusted' "$1"; }

# why_not_fetched LOG [ELSE]: one sentence about the cause that a log of apt or pip shows.
why_not_fetched() {
    if distrusted "$1"; then
        say "the server's certificate is of an authority that is not known here, as behind a proxy that looks into TLS:" \
            "give scripts/image that authority's PEM file with --ca FILE (other scripts: SLUICE_BUILD_CA=FILE)"
    elif grep -qiE '\b407\b|Proxy Authentication Required' "$1"; then
        say "the proxy wants a name and a password: https_proxy=http://NAME:PASSWORD@HOST:PORT"
    elif grep -qiE 'resolv|name resolution|Name or service not known' "$1"; then
        say "a host name cannot be resolved: is there a network, or a proxy to be named in http_proxy and https_proxy?"
    elif grep -qiE 'Connection refused|timed out|Network is unreachable|Cannot connect to proxy' "$1"; then
        say "the server or the proxy cannot be reached: is there a network, and are http_proxy and https_proxy right?"
    else
        say "is there a network, and ${2:-does the mirror carry it?}"
    fi
}

# retry_quietly LOG COMMAND …: up to three times, with pauses; what it says goes into the file.
retry_quietly() {
    local log=$1 pause
    shift
    for pause in 5 20 0; do
        if "$@" >>"$log" 2>&1; then return 0; fi
        if [ "$pause" = 0 ] || distrusted "$log"; then return 1; fi
        sleep "$pause"
    done
}

# as_root COMMAND …: run it as root, directly or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "packages are missing and there is no sudo: run this as root first: scripts/deps${DEPS_SET:+ $DEPS_SET}"
    fi
}

# jobs: how many compilers at once; half a gigabyte of memory each is enough for this code.
jobs_count() { nproc 2>/dev/null || echo 2; }

# http_get PORT PATH: body of an answer on loopback, without curl, for machines that have none.
http_get() (
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf 'GET %s HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' "$2" >&3
    tr -d '\r' <&3 | sed '1,/^$/d'
)
