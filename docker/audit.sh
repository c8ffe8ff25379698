#!/usr/bin/env bash
# Looks for known vulnerabilities of the packages in docker/locks. `make audit` calls it.
#
#   bash docker/audit.sh [pip-audit option ...]     e.g. --vulnerability-service osv, or --ignore-vuln PYSEC-2026-1
#
# Exit codes: 0 none is known, 1 some are (listed), 2 it was not found out.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

options=()
for lock in docker/locks/*.txt; do options+=(--requirement "$lock"); done
outcome=0
# --strict: a mirror without the service knows of no package, and pip-audit would call that no known vulnerabilities.
pip-audit --strict --disable-pip --require-hashes --progress-spinner off "${options[@]}" "$@" \
    >"$scratch/found" 2>"$scratch/said" || outcome=$?
cat "$scratch/found"
if ((outcome == 0)); then
    echo "no known vulnerabilities in the $(cat docker/locks/*.txt | grep -c '^[a-z0-9._-]*==') packages of docker/locks"
elif grep '^Found [0-9]* known vulnerabilit' "$scratch/said"; then
    exit 1
else
    {
        printf 'audit.sh: it was not found out whether packages have vulnerabilities: %s\n' "$(tail -n 1 "$scratch/said" | cut -c1-300)"
        echo "audit.sh: this needs the network and PyPI's own vulnerability service, which mirrors do not have; set HTTPS_PROXY," \
            "or ask another one: make audit AUDIT_OPTIONS='--vulnerability-service osv'"
    } >&2
    exit 2
fi
