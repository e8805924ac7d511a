#!/usr/bin/env bash
# Make the images that e2e/cluster/compare puts beside ours, into .cache/compare: s5cmd, the AWS command line, and KServe's own
# storage initializer. Each is as small as its packages allow: the program, what it needs, certificates.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$CLUSTER/parts.sh"

COMPARE=$CACHE/compare
S5CMD=2.3.0
AWSCLI="awscli==1.46.3"
KSERVE_STORAGE="kserve-storage==0.21.0"
KSERVE_NEEDS="boto3==1.44.5 requests certifi pyyaml orjson"
mkdir -p "$COMPARE"
work=$(mktemp -d "$COMPARE/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# debian_root PACKAGES: a minimal Debian with these, comma-separated.
debian_root() {
    rm -rf "$work/root"
    debootstrap --variant=minbase --include="ca-certificates,$1" "$(. /etc/os-release && echo "$VERSION_CODENAME")" \
        "$work/root" "$(mirror)" >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; die "debootstrap failed"; }
    rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/{doc,man,locale}
    find "$work/root/dev" -mindepth 1 -delete
}

# compile: bytecode that is good whatever the files' times, which images do not keep; without it Python starts slowly.
compile() {
    chroot "$work/root" python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt /usr/lib/python3* >/dev/null || true
}

# s5cmd's published versions cannot be installed by name, so a module asks for it.
s5cmd_image() {
    mkdir -p "$work/s5cmd/root/etc/ssl/certs" "$work/s5cmd/root/tmp"
    printf 'module wanted\n\ngo 1.22\n\nrequire github.com/peak/s5cmd/v2 v%s\n' "$S5CMD" >"$work/s5cmd/go.mod"
    (cd "$work/s5cmd" && CGO_ENABLED=0 GOFLAGS="-buildvcs=false -mod=mod" nice -n 5 "$(go_program)" build -trimpath \
        -ldflags "-s -w" -o root/s5cmd github.com/peak/s5cmd/v2) >"$work/log" 2>&1 || { tail "$work/log" >&2; die "no s5cmd"; }
    cp /etc/ssl/certs/ca-certificates.crt "$work/s5cmd/root/etc/ssl/certs/"
    "$CLUSTER/image.py" "$work/s5cmd/root" "$COMPARE/s5cmd.tar" localhost/s5cmd:e2e --entrypoint /s5cmd --user 65532
}

aws_image() {
    debian_root python3
    python3 -m pip install -q --root-user-action ignore --target "$work/root/opt/aws" "$AWSCLI"
    compile
    "$CLUSTER/image.py" "$work/root" "$COMPARE/aws.tar" localhost/aws:e2e --user 65532 \
        --env PATH=/usr/bin:/bin HOME=/tmp PYTHONPATH=/opt/aws
}

kserve_image() {
    debian_root python3
    # shellcheck disable=SC2086
    python3 -m pip install -q --root-user-action ignore --target "$work/root/opt/kserve" --only-binary :all: --python-version 3.11 $KSERVE_NEEDS
    python3 -m pip install -q --root-user-action ignore --target "$work/root/opt/kserve" --no-deps "$KSERVE_STORAGE"
    compile
    "$CLUSTER/image.py" "$work/root" "$COMPARE/kserve.tar" localhost/kserve:e2e --user 65532 \
        --env PATH=/usr/bin:/bin HOME=/tmp PYTHONPATH=/opt/kserve
}

for name in s5cmd aws kserve; do
    [ -s "$COMPARE/$name.tar" ] || { say "compare: making the image $name"; "${name}_image"; }
done
