# shellcheck shell=bash
# Where the apt and the pip of this machine take packages from. Sourced by .ci/run and image_test.sh, which name no server.

# debian_indexes FORMAT [FILTER...]: a line for each package index of Debian's archive that apt has read (`apt-get update`).
debian_indexes() {
    apt-get indextargets --format "$1" 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' "${@:2}"
}

# Prints the address of Debian's archive; fails where apt has read none.
debian_archive() {
    local uri=
    # shellcheck disable=SC2016  # apt-get fills it in
    read -r uri < <(debian_indexes '$(REPO_URI)' 'Component: main')
    printf '%s\n' "${uri%/}"
    [[ -n $uri ]]
}

# debian_has CODENAME COMPONENT: whether apt has read this component.
debian_has() {
    # shellcheck disable=SC2016
    [[ -n $(debian_indexes '$(SITE)' "Codename: $1" "Component: $2") ]]
}

# add_components CODENAME NAME COMPONENT...: repeats the entry of apt's sources that gives the release's main, with other
# components, in a file NAME beside it, and prints the file. Address, key and options are those of the entry: apt refuses
# two entries of one archive that disagree on them. Fails where there is no such entry.
add_components() {
    local codename=$1 name=$2 entry='' release='' file text parts=
    shift 2
    # shellcheck disable=SC2016
    read -r entry release < <(debian_indexes '$(SOURCESENTRY) $(RELEASE)' "Codename: $codename" 'Component: main')
    [[ -n $entry ]] || return 1
    file=${entry%:*}
    if [[ $file == *.sources ]]; then
        text=$(sed '/^#/d' "$file" | awk -v number="${entry##*:}" -v suite="$release" -v components="$*" '
            BEGIN { RS = ""; FS = "\n" }
            NR == number {
                for (i = 1; i <= NF; i++) {
                    if ($i !~ /^[ \t]/) replaced = tolower($i) ~ /^(types|suites|components):/
                    if (!replaced) print $i
                }
                print "Types: deb\nSuites: " suite "\nComponents: " components
            }')
        name+=.sources
    else
        text=$(awk -v number="${entry##*:}" -v suite="$release" -v components="$*" '
            NR == number && match($0, /^[ \t]*deb[ \t]+(\[[^\]]*\][ \t]*)?[^ \t]+/) {
                print substr($0, 1, RLENGTH) " " suite " " components
            }' "$file")
        name+=.list
    fi
    [[ -n $text ]] || return 1
    eval "$(apt-config shell parts Dir::Etc::sourceparts/d)"
    name=${parts%/}/$name
    printf '%s\n' "$text" >"$name"
    printf '%s\n' "$name"
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
