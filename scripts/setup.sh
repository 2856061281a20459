#!/usr/bin/env bash
# Installs what nestling needs on Debian: programs with apt, Python packages into .venv.
#
#   scripts/setup.sh core    to compile and run models on this machine (make demo)
#   scripts/setup.sh test    to run the tests too
#
# Only what is missing is installed, so a second run needs no network and takes no time. Root
# rights are asked for (sudo) only when a Debian package is missing. PYTHON=/path/to/python3
# chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian package : a program of it, enough in its place if it came from elsewhere ("-": none).
CORE_PACKAGES=(
    gcc:gcc
    libc6-dev:-
)
TEST_PACKAGES=(
    g++:g++
    clang:clang
    libclang-rt-14-dev:-
    gcc-arm-none-eabi:arm-none-eabi-gcc
    libnewlib-arm-none-eabi:-
    qemu-system-arm:qemu-system-arm
    gcc-riscv64-unknown-elf:riscv64-unknown-elf-gcc
    picolibc-riscv64-unknown-elf:-
    qemu-system-misc:qemu-system-riscv32
    gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc
    libc6-dev-arm64-cross:-
    qemu-user:qemu-aarch64
    openssl:openssl
    valgrind:valgrind
    llvm-16:llvm-mca-16
    cmake:cmake
    chromium:chromium
)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

logged() { # command ...: its output goes to the log, and is shown only if it fails
    "$@" >.cache/setup.log 2>&1 || { cat .cache/setup.log >&2; return 1; }
}

have_package() { # name:program
    local name=${1%%:*} program=${1##*:}
    if [ "$program" != - ] && command -v "$program" >/dev/null; then return 0; fi
    if ! command -v dpkg-query >/dev/null; then # not Debian: nothing can be said about libraries
        [ "$program" = - ]
        return
    fi
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ]
}

install_debian() { # name:program ...
    local missing=() package
    for package in "$@"; do
        have_package "$package" || missing+=("${package%%:*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "please install what Debian calls: ${missing[*]}"

    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "needs root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    say "apt-get install ${missing[*]}"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get -q -y -o DPkg::Lock::Timeout=300)
    logged "${apt[@]}" update || say "apt-get update failed; trying with the lists as they are"
    logged "${apt[@]}" install --no-install-recommends "${missing[@]}" ||
        die "could not install ${missing[*]}"
}

find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    die "needs Python 3.11 or newer (apt-get install python3)"
}

install_python() { # core|test
    local python stamp=.venv/nestling-setup key
    # The folder is in the key because an editable install and the scripts hold its path.
    key=$( (pwd; cat pyproject.toml scripts/setup.sh) | sha256sum | cut -d' ' -f1)
    if [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null; then
        # A `test` environment serves for `core` too.
        if grep -qxE "($1|test) $key" "$stamp" 2>/dev/null; then return 0; fi
    else
        python=$(find_python)
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            install_debian "python3-venv:-"
        fi
        say "making .venv with $python"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    rm -f "$stamp"
    local what=.
    if [ "$1" = test ]; then what='.[test]'; fi
    say "pip install --editable $what"
    logged .venv/bin/python -m pip install --no-input --disable-pip-version-check \
        --editable "$what" || die "could not install the Python packages"
    printf '%s %s\n' "$1" "$key" >"$stamp"
}

level=${1:-test}
mkdir -p .cache
exec 9>.cache/setup.lock
flock 9 # two runs in one folder take turns
case $level in
core) install_debian "${CORE_PACKAGES[@]}" ;;
test) install_debian "${CORE_PACKAGES[@]}" "${TEST_PACKAGES[@]}" ;;
*) die "usage: scripts/setup.sh [core|test]" ;;
esac
install_python "$level"
