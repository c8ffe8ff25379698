# shellcheck shell=bash disable=SC2016  # apt-get fills in what stands in quotes
# Where the apt and the pip of this machine take packages from. Sourced by .ci/run and image_test.sh, which name no server.

# debian_indexes FORMAT [FILTER...]: a line for each package index of Debian's archive that apt has read (`apt-get update`).
debian_indexes() {
    apt-get indextargets --format "$1" 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' "${@:2}"
}

# Prints the address of Debian's archive; fails where apt has read none.
debian_archive() {
    local uri=
    read -r uri < <(debian_indexes '$(REPO_URI)' 'Component: main')
    printf '%s\n' "${uri%/}"
    [[ -n $uri ]]
}

# Adds contrib and non-free beside main in the file that gives Debian's archive to apt.
add_nonfree() {
    local entry file
    if [[ -n $(debian_indexes '$(SITE)' 'Component: non-free') ]]; then return; fi
    read -r entry < <(debian_indexes '$(SOURCESENTRY)' 'Component: main')
    file=${entry%:*}
    sed -i -E 's/^((Components:|deb ).*)\bmain\b/\1main contrib non-free/' "$file"
}

# pip_setting NAME: what pip's variable or files give for index-url, find-links and so on, on one line; empty for pip's own
# default. `pip config get` would look into one of its files alone.
pip_setting() {
    local name=$1 variable=PIP_${1^^} value settings section
    variable=${variable//-/_}
    value=${!variable:-}
    settings=$("${PYTHON:-python3}" -m pip config list 2>/dev/null || true)
    for section in install global; do
        if [[ -z $value ]]; then value=$(sed -n "s/^$section\.$name=.\(.*\).\$/\1/p" <<<"$settings"); fi
    done
    local -a words
    read -r -d '' -a words <<<"${value//'\n'/ }" || true
    printf '%s\n' "${words[*]}"
}
