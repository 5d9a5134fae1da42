#!/usr/bin/env bash
# Installs engines for the tests in tests/launch, `secure`, which those of
# tests/process/security need, and `page`, a browser for those of the web page in
# tests/process/monitor: install_engines.sh NAME...
# On Debian, as root. Elsewhere it says what is missing, and tests skip.
set -euo pipefail

# Debian's packages of an engine.
packages() {
  case $1 in
    page) command -v chromium > /dev/null || echo chromium ;;
    hosts) echo openssh-server openssh-client iproute2 ;;
    secure)
      echo haproxy
      command -v cc > /dev/null || echo gcc libc6-dev ;;
    slurm) echo slurm-wlm munge iproute2 ;;
    spark) command -v java > /dev/null || echo default-jre-headless ;;
    *) echo "$0: no engine $1" >&2; exit 2 ;;
  esac
}

wanted=()
for engine in "$@"; do
  for package in $(packages "$engine"); do
    dpkg -s "$package" > /dev/null 2>&1 || wanted+=("$package")
  done
done
[[ ${#wanted[@]} -gt 0 ]] || exit 0
if [[ $(id -u) -ne 0 ]] || ! command -v apt-get > /dev/null; then
  echo "$0: not installed, which takes root and Debian: ${wanted[*]}" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then  # No daemon is to start: tests start their own.
  printf '#!/bin/sh\nexit 101\n' > $policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
if ! { apt-get update -qq &&
  apt-get install -qq --no-install-recommends "${wanted[@]}" > /dev/null; }; then
  echo "$0: could not be installed: ${wanted[*]}" >&2
fi
