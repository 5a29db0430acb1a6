# Sourced by the scripts beside it. `in_env run|dev PROGRAM [ARGUMENT…]` becomes the program, once .venv is there and
# up to date. That is seen in two milliseconds; where it is not so, setup_env.py does the work, then the same.

root=${here%/*/*} # $here: the real path of the script that sources this

in_env() {
    goal=$1
    shift
    is_current && exec "$@"
    find_python
    exec "$python" "$root/scripts/setup_env.py" "$goal" "$@"
}

# The files are described, and written, by setup_env.py.
is_current() {
    state=$root/.venv/localllm
    [ -x "$root/.venv/bin/python" ] && [ -r "$state/llama" ] && [ -r "$state/$goal" ] && [ ! -e "$state/working" ] ||
        return
    read -r backend _ <"$state/llama"
    [ "${LOCALLLM_BACKEND:-$backend}" = "$backend" ] || return
    { IFS= read -r home && [ "$home" = "$root" ] && cmp -s - "$root/pyproject.toml"; } <"$state/$goal"
}

find_python() {
    too_old=
    for python in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
        case $version in
            '') ;;
            2.* | 3.? | 3.10) too_old="$too_old $python is Python $version." ;;
            *) break ;;
        esac
        [ -z "$PYTHON" ] || fail "PYTHON=$PYTHON is not Python 3.11 or newer.$too_old Set it to one that is, or unset it."
        version=
    done
    [ -n "$version" ] ||
        fail "Python 3.11 or newer was not found.$too_old Install one (Debian: apt install python3 python3-venv) or set PYTHON=/path/to/python3."
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$python cannot make a virtual environment. Install its venv module (Debian: apt install python3-venv)."
}

fail() {
    echo "localllm: $1" >&2
    exit 1
}
