#compdef helios
# Completion of helios for zsh. tools/gen_completion.py puts its tables in place of the next line.
@TABLES@
# Names that the cluster knows: job, model, shard or node. A cluster that does not answer in 2 s offers none.
__helios_names() {
    local pattern
    local -a command
    case $1 in
        job) command=(list) pattern='{4,6\}"id"' ;;
        model) command=(model ls) pattern='{4,6\}"name"' ;;
        shard) command=(shard ls) pattern='{4,6\}"id"' ;;
        node) command=(nodes) pattern='{4,8\}"name"' ;;
    esac
    timeout 2 "${program[@]}" --rpc-timeout 1s "${command[@]}" -o json 2>/dev/null </dev/null |
        sed -n 's/^ \'"$pattern"': "\([^"]*\)".*/\1/p' | head -n 1000
}

# Candidates as a table's entry $1 describes them: =WORD, @NAMES, file, dir.
__helios_candidates() {
    local kind
    for kind in ${=1}; do
        case $kind in
            '='*) compadd -- "${kind#=}" ;;
            '@'*) compadd -- ${(f)"$(__helios_names "${kind#@}")"} ;;
            file) _files ;;
            dir) _files -/ ;;
        esac
    done
}

_helios() {
    local command="" group="" flag="" word kind i count=0
    local -a program described
    program=("${words[1]/#\~/$HOME}")
    for ((i = 2; i < CURRENT; i++)); do # what stands before the cursor
        word=${words[i]}
        if [[ -n $flag ]]; then
            [[ $flag == --state || $flag == --controller ]] && program+=("$flag" "${word/#\~/$HOME}")
            flag=""
        elif [[ $word == --*=* ]]; then
            [[ $word == (--state|--controller)=* ]] && program+=("$word")
        elif [[ $word == -?* ]]; then
            kind=$(__helios_value "$command" "$word")
            [[ $kind == bool ]] || flag=$word
        elif [[ -z $command && -z $group && $word == help ]]; then
            continue
        elif [[ -z $command ]]; then
            if [[ " $__helios_commands " == *" ${group:+${group}_}$word "* ]]; then command=${group:+$group }$word
            elif [[ -z $group && " $__helios_groups " == *" $word "* ]]; then group=$word
            else return 1; fi
        else
            count=$((count + 1))
        fi
    done
    if [[ -n $flag ]]; then
        __helios_candidates "$(__helios_value "$command" "$flag")"
    elif [[ ${words[CURRENT]} == --*=* ]]; then
        flag=${words[CURRENT]%%=*}
        compset -P '*='
        __helios_candidates "$(__helios_value "$command" "$flag")"
    elif [[ ${words[CURRENT]} == -* ]]; then
        described=(${(f)"$(__helios_described "$command")"} ${(f)"$(__helios_described "-")"} "--help:Show help")
        _describe -o option described
    elif [[ -n $command ]]; then
        __helios_candidates "$(__helios_argument "$command:$count")"
    else
        described=(${(f)"$(__helios_described "${group:-commands} ")"})
        _describe command described
    fi
}

_helios "$@"
