#!/bin/sh
# Installs svc-agent on this machine, and starts it.
#
#   curl -fsSL {{ base_url }}/install.sh -o install.sh
#   SVC_ENROLMENT_TOKEN=… sh install.sh        (without the variable, the script asks)
#
#   SVC_AGENT_VERSION    another version than the newest
#   SVC_RELEASE_KEY      the Ed25519 public keys of releases, PEM: only what one of them signed is installed
#   DESTDIR              a folder, such as an image: copies binary, unit and configuration into it, and starts nothing
#
# What is missing on the console (404) may have another form there; any other failure ends the script with its reason.
# Everything is inside functions that the last line calls: a script that is cut off does nothing.
set -eu

BASE_URL='{{ base_url }}'
INGEST_ADDRESS='{{ ingest_address }}'
VERSION="${SVC_AGENT_VERSION:-{{ version }}}"
DESTDIR="${DESTDIR:-}"
RELEASE_KEY="${SVC_RELEASE_KEY:-{{ release_keys }}}"
ATTEMPTS=4

main() {
    [ "$(id -u)" = 0 ] || [ -n "$DESTDIR" ] || fail "run this as root"
    [ -n "$VERSION" ] || fail "the console offers no release: its page of a new token shows how to install without one"
    umask 022
    os=$(uname -s | tr '[:upper:]' '[:lower:]')
    arch=$(architecture "$(uname -m)")
    state=$DESTDIR/var/lib/svc-agent
    [ -z "$DESTDIR" ] || [ ! -d "$state" ] || [ -z "$(ls -A "$state")" ] ||
        fail "$state has the key of an agent, which no image may have: delete what is in it"
    token=${SVC_ENROLMENT_TOKEN:-$(ask)}
    [ -n "$token" ] || fail "an enrolment token is needed"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trust
    kind=binary
    [ -n "$DESTDIR" ] || kind=$(package_of /etc/os-release)
    case $kind in
        deb) fetch svc-agent.deb "svc-agent_$(package_version)_$(debian_name "$arch").deb" || kind=binary ;;
        rpm) fetch svc-agent.rpm "svc-agent-$(package_version)-1.$arch.rpm" || kind=binary ;;
    esac
    case $kind in
        deb) dpkg -i "$work/svc-agent.deb" ;;
        rpm) rpm -U --replacepkgs "$work/svc-agent.rpm" ;;
        *)
            [ -n "$DESTDIR" ] || [ ! -e /usr/bin/svc-agent ] ||
                fail "svc-agent is installed as a package here, and release $VERSION has no package for it"
            fetch svc-agent "svc-agent-$VERSION-$os-$arch" || fail "there is no release $VERSION for $os on $arch"
            install_binary
            ;;
    esac
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

# Releases have the kernel's names, and other systems have others for the same.
architecture() {
    case $1 in
        amd64) echo x86_64 ;;
        arm64) echo aarch64 ;;
        *) echo "$1" ;;
    esac
}

debian_name() {
    case $1 in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) echo "$1" ;;
    esac
}

# A release candidate ranks below its release for dpkg and rpm only with a tilde.
package_version() {
    printf '%s' "$VERSION" | tr -- '-' '~'
}

# The packages that this system is made of. Having dpkg or rpm as a tool does not make it one of theirs.
package_of() {
    # shellcheck disable=SC1090
    ids=" $([ ! -r "$1" ] || (. "$1" && echo "${ID-} ${ID_LIKE-}")) "
    case $ids in
        *" debian "* | *" ubuntu "*) tool=dpkg package=deb ;;
        *" rhel "* | *" fedora "* | *" centos "* | *" amzn "* | *" suse "*) tool=rpm package=rpm ;;
        *) tool=false package=binary ;;
    esac
    command -v "$tool" >/dev/null || package=binary
    echo "$package"
}

# The console's certificate, if it is one of a private CA, and the key of releases.
trust() {
    console_ca=
{% if !console_ca.is_empty() %}    console_ca=$work/console_ca.pem
    cat >"$console_ca" <<'CERTIFICATE'
{{ console_ca }}
CERTIFICATE
{% endif %}    [ -n "$RELEASE_KEY" ] || return 0
    command -v openssl >/dev/null || fail "openssl is needed to verify the signature of the release"
    printf '%s\n' "$RELEASE_KEY" | awk -v file="$work/key" '/-----BEGIN/ { count++ } count { print >(file count) }'
    sums=$BASE_URL/download/svc-agent/$VERSION/SHA256SUMS
    download "$sums" "$work/SHA256SUMS" || fail "release $VERSION has no SHA256SUMS, and a key is set: it is not trusted"
    download "$sums.sig" "$work/SHA256SUMS.sig" || fail "release $VERSION has no signature, and a key is set: it is not trusted"
    for key in "$work"/key*; do
        ! openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$work/SHA256SUMS" \
            -sigfile "$work/SHA256SUMS.sig" >"$work/openssl" 2>&1 || return 0
    done
    cat "$work/openssl" >&2
    fail "the signature of release $VERSION is wrong (or openssl is older than 3.0)"
}

# Downloads a file of the release, and compares its checksum. With a key, the signed checksums must have it too, under the
# name that the file has in the release. Returns 1 if the release has no such file.
fetch() {
    url="$BASE_URL/download/svc-agent/$VERSION/$os/$arch/$1"
    download "$url" "$work/$1" || return 1
    download "$url.sha256" "$work/$1.sha256" || fail "there is no checksum of $1"
    sum=$(sha256sum <"$work/$1" | cut -d ' ' -f 1)
    [ "$(cut -d ' ' -f 1 "$work/$1.sha256")" = "$sum" ] || fail "the checksum of $1 is wrong"
    [ -z "$RELEASE_KEY" ] || grep -qxF "$sum  $2" "$work/SHA256SUMS" || fail "the signed checksums do not have this $1"
}

# Returns 1 if there is no such file, and ends the script if that is not known.
download() {
    attempt=1
    while :; do
        status=$(request "$1" "$2")
        case $status in
            200) return 0 ;;
            404) return 1 ;;
            000 | 408 | 429 | 5??) [ "$attempt" -lt "$ATTEMPTS" ] || break ;;
            *) break ;;
        esac
        sleep "$attempt"
        attempt=$((attempt + 1))
    done
    [ "$status" != 000 ] || fail "$1 cannot be downloaded"
    fail "$1 cannot be downloaded: the console answers $status"
}

# Prints the status of the answer, or 000 without one. The reason of a failure goes to the terminal.
request() {
    if command -v curl >/dev/null; then
        code=$(curl -sSL ${console_ca:+--cacert "$console_ca"} -w '%{http_code}' -o "$2" "$1") || code=000
    else
        if wget -S ${console_ca:+--ca-certificate="$console_ca"} -O "$2" "$1" 2>"$work/wget"; then
            code=200
        else
            code=$(sed -n 's/^ *HTTP\/[0-9.]* \([0-9]*\).*/\1/p' "$work/wget" | tail -n 1)
            case $code in
                '' | 200) code=000 && cat "$work/wget" >&2 ;;
            esac
        fi
    fi
    echo "$code"
}

install_binary() {
    install -D -m 755 "$work/svc-agent" "$DESTDIR/usr/local/bin/svc-agent"
    units=$DESTDIR/etc/systemd/system
    mkdir -p "$units"
    cat >"$units/svc-agent.service" <<'UNIT'
{{ unit }}
UNIT
    [ -z "$DESTDIR" ] || return 0
    id svc-agent >/dev/null 2>&1 ||
        useradd --system --user-group --no-create-home --home-dir /var/lib/svc-agent --shell /usr/sbin/nologin svc-agent ||
        fail "the user svc-agent cannot be created"
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# The service's certificate is pinned: the agent trusts it alone. A configuration that names a service stays as it is; one
# that does not, such as the commented one of a package, stays too, and gets a drop-in.
configure() {
    etc=$DESTDIR/etc/svc
    mkdir -p "$etc"
{% if !ca.is_empty() %}    cat >"$etc/ingest_ca.pem" <<'CERTIFICATE'
{{ ca }}
CERTIFICATE
{% endif %}    umask 027
    printf '%s\n' "$token" >"$etc/enrolment_token"
    config=$etc/agent.toml
    if grep -Eqs '^[[:space:]]*ingest_address[[:space:]]*=' "$config" "$etc/agent.toml.d"/*.toml; then
        echo "The configuration in $etc names a service already, and stays as it is."
        config=
    elif [ -e "$config" ]; then
        (umask 022 && mkdir -p "$etc/agent.toml.d")
        config=$etc/agent.toml.d/50-console.toml
    fi
    [ -z "$config" ] || cat >"$config" <<CONFIG
ingest_address = "$INGEST_ADDRESS"
enrolment_token_file = "/etc/svc/enrolment_token"
{% if !ca.is_empty() %}ca_cert_file = "/etc/svc/ingest_ca.pem"
{% endif %}CONFIG
    umask 022
    [ -n "$DESTDIR" ] || chgrp svc-agent "$etc/enrolment_token" ${config:+"$config"}
}

start() {
    if [ -n "$DESTDIR" ]; then
        prepare_image
        echo "svc-agent $VERSION is in $DESTDIR. It starts when a machine boots from it."
    elif [ -d /run/systemd/system ]; then
        systemctl enable svc-agent
        systemctl restart svc-agent
        echo "svc-agent $VERSION runs. It waits for approval at $BASE_URL/approvals, unless its token approves it."
    else
        echo "svc-agent $VERSION is installed. Start it with: svc-agent run --config /etc/svc/agent.toml"
    fi
}

# A folder need not have the tools of its system, nor run on this machine: systemd makes the user when the image boots, gives it
# its settings, and starts the agent, which then makes a key of its own.
prepare_image() {
    mkdir -p "$DESTDIR/etc/sysusers.d" "$DESTDIR/etc/tmpfiles.d" "$units/multi-user.target.wants"
    echo 'u svc-agent - "svc-agent" /var/lib/svc-agent' >"$DESTDIR/etc/sysusers.d/svc-agent.conf"
    printf 'z /etc/svc/%s 0640 root svc-agent\n' agent.toml enrolment_token 'agent.toml.d/*.toml' >"$DESTDIR/etc/tmpfiles.d/svc-agent.conf"
    ln -sf ../svc-agent.service "$units/multi-user.target.wants/svc-agent.service"
    # systemd-sysusers runs where /usr is newer than what /etc was last updated for.
    touch "$DESTDIR/usr"
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

main "$@"
