# shellcheck shell=bash disable=SC2034,SC2154
# The programs of the cluster, into .cache/cluster: source it, do not run it. See common.sh.
#
# Debian's own release is too old for some of them, so those are unpacked from its development release beside the
# system, never installed. The Kubernetes programs come as Go modules and are built here, as one executable.

# cannot_run: why this machine cannot hold a cluster; nothing if it can. Everything that would end in a confusing
# failure later is asked here.
cannot_run() {
    local program
    [ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || { echo "needs Linux on x86_64"; return; }
    [ "$(id -u)" -eq 0 ] || { echo "needs root, for containers and their network"; return; }
    go_program >/dev/null || have_parts || { echo "no go to build Kubernetes with"; return; }
    for program in runc nft iptables ip conntrack openssl busybox findmnt gcc; do
        command -v "$program" >/dev/null || { echo "no $program: scripts/deps cluster installs it"; return; }
    done
    unshare --mount true 2>/dev/null || { echo "mount namespaces are not allowed here"; return; }
    unshare --net true 2>/dev/null || { echo "network namespaces are not allowed here"; return; }
    grep -qw overlay /proc/filesystems || { echo "the kernel has no overlayfs"; return; }
    if [ ! -d "$STATE" ] && [ -n "$(ls -A /var/lib/kubelet 2>/dev/null)" ]; then
        echo "another kubelet lives here: /var/lib/kubelet is not empty"
    fi
}

go_program() { command -v go || { [ -x /usr/local/go/bin/go ] && echo /usr/local/go/bin/go; }; }

have_parts() {
    local name
    for name in etcd containerd containerd-shim-runc-v2 ctr kubectl k8snode coredns; do
        [ -x "$BIN/$name" ] || return 1
    done
    [ -x "$CNI/bridge" ]
}

# mirror: where this machine gets Debian from, as its own configuration says.
mirror() {
    local release
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 2>/dev/null |
        awk -v release="$release" '$2 == release && $3 == "main" && $1 ~ /debian/ { print $1; exit }'
}

# unpack_debian RELEASE PACKAGE …: fetch packages of another release and unpack them in PARTS/debian.
unpack_debian() {
    local release=$1 apt=$PARTS/apt uri package
    shift
    uri=$(mirror)
    [ -n "$uri" ] || die "no Debian mirror in apt's configuration"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$PARTS/debian"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $release main" >"$apt/sources.list"
    # An empty status file: apt would else compare with what is installed, and may prefer that.
    : >"$apt/status"
    local options=(-q -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists" -o "Dir::State::Status=$apt/status"
        -o "Dir::Cache=$apt/cache" -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >"$apt/log" 2>&1 || { cat "$apt/log" >&2; return 1; }
    (cd "$apt/debs" && apt-get "${options[@]}" download "$@" >>"$apt/log" 2>&1) || { cat "$apt/log" >&2; return 1; }
    for package in "$apt"/debs/*.deb; do
        dpkg -x "$package" "$PARTS/debian"
    done
    rm -rf "$apt"
}

# get_debian: etcd, containerd, CNI and kubectl; the development release first, the one before it if that asks for a
# newer libc than this machine has.
get_debian() {
    local release
    [ ! -x "$BIN/containerd" ] || [ ! -x "$BIN/etcd" ] || [ ! -x "$BIN/kubectl" ] || [ ! -x "$CNI/bridge" ] || return 0
    for release in sid testing; do
        say "cluster: etcd, containerd, CNI and kubectl from Debian $release"
        rm -rf "$PARTS/debian"
        unpack_debian "$release" etcd-server containerd containernetworking-plugins kubectl || continue
        install -m 0755 "$PARTS"/debian/usr/bin/{etcd,containerd,containerd-shim-runc-v2,ctr,kubectl} "$BIN"
        install -m 0755 "$PARTS"/debian/usr/lib/cni/{bridge,host-local,loopback,portmap} "$CNI"
        rm -rf "$PARTS/debian"
        if "$BIN/etcd" --version && "$BIN/containerd" --version && "$BIN/kubectl" version --client; then
            return 0
        fi >/dev/null 2>"$PARTS/debian.log"
        say "cluster: those of $release do not run here: $(tail -n 1 "$PARTS/debian.log")"
    done
    rm -f "$BIN/containerd"
    die "no usable etcd, containerd and kubectl"
}

# go_build ARGUMENTS …: a plain static build that says nothing unless it fails. Two tries: downloads hiccup.
go_build() {
    local log=$PARTS/go.log try
    for try in 1 2; do
        if CGO_ENABLED=0 GOFLAGS="-buildvcs=false ${GO_MOD:-}" GOBIN=$BIN nice -n 5 "$(go_program)" "$@" >"$log" 2>&1; then
            rm -f "$log"
            return 0
        fi
    done
    tail -n 30 "$log" >&2
    die "go $1 failed"
}

# get_kubernetes: eight minutes of two cores, once.
get_kubernetes() {
    local work=$PARTS/k8snode set="-X k8s.io/component-base/version" start=$SECONDS
    [ ! -x "$BIN/k8snode" ] || return 0
    say "cluster: building Kubernetes $KUBERNETES (minutes, once)"
    rm -rf "$work"
    mkdir -p "$work"
    cp "$CLUSTER/k8snode/go.mod" "$CLUSTER/k8snode/main.go" "$work"
    # -mod=mod completes go.mod from its one requirement. Without gitVersion the server calls itself v0.0.0.
    (cd "$work" && GO_MOD=-mod=mod go_build build -trimpath -o "$BIN/k8snode" -ldflags "-s -w
        $set.gitVersion=v$KUBERNETES $set.gitMajor=${KUBERNETES%%.*} $set.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES")" .)
    rm -rf "$work"
    say "cluster: built in $((SECONDS - start)) s"
}

get_coredns() {
    [ ! -x "$BIN/coredns" ] || return 0
    say "cluster: building CoreDNS $COREDNS (a minute or two, once)"
    go_build install -trimpath -ldflags "-s -w" "github.com/coredns/coredns@v$COREDNS"
}

# get_provisioner: external-provisioner, which makes volumes of a StorageClass; for one check, so only when asked for. Its
# go.mod replaces modules, so it is built where it lies, as the main module, with a copy of that file that may be written.
get_provisioner() {
    local module=github.com/kubernetes-csi/external-provisioner/v5@v$PROVISIONER work=$PARTS/provisioner folder start=$SECONDS
    [ ! -x "$BIN/csi-provisioner" ] || return 0
    say "cluster: building external-provisioner $PROVISIONER (minutes, once)"
    mkdir -p "$BIN" "$work"
    (cd "$work" && go_build mod download "$module")
    folder=$("$(go_program)" env GOMODCACHE)/$module
    install -m 0644 "$folder/go.mod" "$folder/go.sum" "$work"
    (cd "$folder" && GO_MOD=-mod=mod go_build build -modfile "$work/go.mod" -trimpath -ldflags "-s -w" \
        -o "$BIN/csi-provisioner" ./cmd/csi-provisioner)
    rm -rf "$work"
    say "cluster: built in $((SECONDS - start)) s"
}

# get_images: the sandbox of every pod, and a shell with sha256sum for the pods that read what sluice loaded.
get_images() {
    local images=$PARTS/images root
    [ ! -e "$images/shell.tar" ] || return 0
    say "cluster: making the images pause and shell"
    mkdir -p "$images"
    root=$(mktemp -d)
    mkdir -p "$root/pause" "$root/shell/bin" "$root/shell/tmp" "$root/shell/etc"
    gcc -O2 -static -s -o "$root/pause/pause" "$CLUSTER/pause.c"
    cp "$(command -v busybox)" "$root/shell/bin/busybox"
    local applet
    for applet in $(busybox --list); do
        [ "$applet" = busybox ] || ln -s busybox "$root/shell/bin/$applet"
    done
    "$CLUSTER/image.py" "$root/pause" "$images/pause.tar" localhost/pause:1 --entrypoint /pause
    "$CLUSTER/image.py" "$root/shell" "$images/shell.tar" localhost/shell:1 --env PATH=/bin --user 65532
    rm -rf "$root"
}

get_parts() {
    local name
    mkdir -p "$BIN" "$CNI"
    get_debian
    get_kubernetes
    get_coredns
    for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet; do
        ln -sf k8snode "$BIN/$name"
    done
    get_images
}
