#!/bin/sh
# Installs svc-agent on this machine, and starts it.
#
#   curl -fsSL {{ base_url }}/install.sh -o install.sh
#   SVC_ENROLMENT_TOKEN=… sh install.sh        (without the variable, the script asks)
#
# With DESTDIR it copies the binary and its configuration into a folder, such as an image, and starts nothing.
# Everything is inside a function that the last line calls: a script that is cut off does nothing.
set -eu

BASE_URL='{{ base_url }}'
INGEST_ADDRESS='{{ ingest_address }}'
VERSION="${SVC_AGENT_VERSION:-{{ version }}}"
DESTDIR="${DESTDIR:-}"

main() {
    [ "$(id -u)" = 0 ] || [ -n "$DESTDIR" ] || fail "run this as root"
    [ -n "$VERSION" ] || fail "the console offers no release: set SVC_AGENT_VERSION"
    os=$(uname -s | tr '[:upper:]' '[:lower:]')
    arch=$(uname -m)
    token=${SVC_ENROLMENT_TOKEN:-$(ask)}
    [ -n "$token" ] || fail "an enrolment token is needed"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    if [ -z "$DESTDIR" ] && command -v dpkg >/dev/null && fetch svc-agent.deb; then
        dpkg -i "$work/svc-agent.deb"
    elif [ -z "$DESTDIR" ] && command -v rpm >/dev/null && fetch svc-agent.rpm; then
        rpm -U --replacepkgs "$work/svc-agent.rpm"
    else
        fetch svc-agent || fail "there is no release $VERSION for $os on $arch"
        install_binary
    fi
    configure
    start
}

# The token must not appear in the process list: it is read, never passed as an argument.
ask() {
    [ -r /dev/tty ] || fail "set SVC_ENROLMENT_TOKEN"
    printf 'Enrolment token: ' >/dev/tty
    stty -echo </dev/tty 2>/dev/null || true
    read -r answer </dev/tty
    stty echo </dev/tty 2>/dev/null || true
    printf '\n' >/dev/tty
    printf '%s' "$answer"
}

# Downloads a file of the release and compares its checksum.
fetch() {
    url="$BASE_URL/download/svc-agent/$VERSION/$os/$arch/$1"
    download "$url" "$work/$1" || return 1
    download "$url.sha256" "$work/$1.sha256" || fail "there is no checksum of $1"
    (cd "$work" && sha256sum -c "$1.sha256" >/dev/null) || fail "the checksum of $1 is wrong"
}

download() {
    if command -v curl >/dev/null; then
        curl -fsSL --retry 3 -o "$2" "$1" 2>/dev/null
    else
        wget -q -O "$2" "$1"
    fi
}

install_binary() {
    install -D -m 755 "$work/svc-agent" "$DESTDIR/usr/local/bin/svc-agent"
    mkdir -p "$DESTDIR/etc/systemd/system"
    cat >"$DESTDIR/etc/systemd/system/svc-agent.service" <<'UNIT'
{{ unit }}
UNIT
    [ -z "$DESTDIR" ] || return 0
    id svc-agent >/dev/null 2>&1 ||
        useradd --system --user-group --no-create-home --home-dir /var/lib/svc-agent --shell /usr/sbin/nologin svc-agent
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# The service's certificate is pinned: the agent trusts it alone. An existing configuration stays.
configure() {
    etc=$DESTDIR/etc/svc
    mkdir -p "$etc"
{% if !ca.is_empty() %}    cat >"$etc/ingest_ca.pem" <<'CERTIFICATE'
{{ ca }}
CERTIFICATE
{% endif %}    umask 027
    printf '%s\n' "$token" >"$etc/enrolment_token"
    [ ! -e "$etc/agent.toml" ] || grep -q '^ingest_address' "$etc/agent.toml" || rm "$etc/agent.toml"
    [ -e "$etc/agent.toml" ] || cat >"$etc/agent.toml" <<CONFIG
ingest_address = "$INGEST_ADDRESS"
enrolment_token_file = "/etc/svc/enrolment_token"
{% if !ca.is_empty() %}ca_cert_file = "/etc/svc/ingest_ca.pem"
{% endif %}CONFIG
    [ -n "$DESTDIR" ] || chgrp svc-agent "$etc/enrolment_token" "$etc/agent.toml"
}

start() {
    if [ -n "$DESTDIR" ]; then
        echo "svc-agent $VERSION is in $DESTDIR. The image needs the user svc-agent, and the unit enabled."
    elif [ -d /run/systemd/system ]; then
        systemctl enable --now svc-agent
        systemctl restart svc-agent
        echo "svc-agent $VERSION runs. It waits for approval at $BASE_URL/approvals, unless its token approves it."
    else
        echo "svc-agent $VERSION is installed. Start it with: svc-agent run --config /etc/svc/agent.toml"
    fi
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

main "$@"
