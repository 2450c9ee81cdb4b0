# Completion of helios for bash. tools/gen_completion.py puts its tables in place of the next line.
@TABLES@
# Names that the cluster knows: job, model, shard or node. A cluster that does not answer in 2 s offers none.
__helios_names() {
    local command pattern
    case $1 in
        job) command=list pattern='{4,6\}"id"' ;;
        model) command="model ls" pattern='{4,6\}"name"' ;;
        shard) command="shard ls" pattern='{4,6\}"id"' ;;
        node) command=nodes pattern='{4,8\}"name"' ;;
    esac
    timeout 2 "${__helios_program[@]}" --rpc-timeout 1s $command -o json 2>/dev/null </dev/null |
        sed -n 's/^ \'"$pattern"': "\([^"]*\)".*/\1/p' | head -n 1000
}

# Candidates for $2 as a table's entry $1 describes them: =WORD, @NAMES, file, dir.
__helios_candidates() {
    local kind
    COMPREPLY=()
    for kind in $1; do
        case $kind in
            '='*) COMPREPLY+=($(compgen -W "${kind#=}" -- "$2")) ;;
            '@'*) COMPREPLY+=($(compgen -W "$(__helios_names "${kind#@}")" -- "$2")) ;;
            file) compopt -o filenames 2>/dev/null; mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$2") ;;
            dir) compopt -o filenames 2>/dev/null; mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$2") ;;
        esac
    done
}

_helios() {
    local cur command="" group="" flag="" word kind last="" count=0 words=()
    local __helios_program=("${COMP_WORDS[0]/#\~/$HOME}")
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do # bash divides HOST:PORT
        if [[ ${#words[@]} -gt 0 && ($word == : || $last == :) ]]; then words[-1]+=$word
        else words+=("$word"); fi
        last=$word
    done
    cur=${words[-1]}
    [[ $cur == "=" ]] && cur=""
    for word in "${words[@]::${#words[@]}-1}"; do # what stands before the cursor
        if [[ -n $flag ]]; then
            [[ $word == "=" ]] && continue
            [[ $flag == --state || $flag == --controller ]] && __helios_program+=("$flag" "${word/#\~/$HOME}")
            flag=""
        elif [[ $word == -?* ]]; then
            kind=$(__helios_value "$command" "$word")
            [[ $kind == bool ]] || flag=$word
        elif [[ -z $command && -z $group && $word == help ]]; then
            continue
        elif [[ -z $command ]]; then
            if [[ " $__helios_commands " == *" ${group:+${group}_}$word "* ]]; then command=${group:+$group }$word
            elif [[ -z $group && " $__helios_groups " == *" $word "* ]]; then group=$word
            else return; fi
        else
            count=$((count + 1))
        fi
    done
    [[ ${words[-1]} == "=" && -z $flag ]] && return
    if [[ -n $flag ]]; then
        __helios_candidates "$(__helios_value "$command" "$flag")" "$cur"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$(__helios_options "$command") $(__helios_options "") --help" -- "$cur"))
    elif [[ -n $command ]]; then
        __helios_candidates "$(__helios_argument "$command:$count")" "$cur"
    elif [[ -n $group ]]; then
        for word in $__helios_commands; do
            [[ $word == "${group}_$cur"* ]] && COMPREPLY+=("${word#"${group}_"}")
        done
    else
        for word in $__helios_commands; do [[ $word == *_* ]] || kind+=" $word"; done
        COMPREPLY=($(compgen -W "$kind $__helios_groups help" -- "$cur"))
    fi
}

complete -F _helios helios
