#!/usr/bin/env bash
# The image's own user, with the uid given.

set -euo pipefail
uid=$1
if [[ ! $uid =~ ^[1-9][0-9]*$ ]]; then
    echo "user.sh: USER_ID=$uid: give the number of a user who is not root" >&2
    exit 1
fi
# Ubuntu's images have an account with uid 1000: ours goes before it, since the first one gives the name and the home.
useradd --create-home --non-unique --no-log-init --uid "$uid" --shell /bin/bash bertbench
accounts=$(grep '^bertbench:' /etc/passwd && grep -v '^bertbench:' /etc/passwd)
printf '%s\n' "$accounts" >/etc/passwd
