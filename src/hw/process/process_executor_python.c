/* Selects the Python of the ranks: a virtual environment, a conda environment, or one interpreter.
 * It sets what an activation by hand would set; scripts of an environment (conda's activate.d) are
 * not run. */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hw/process/process_executor_private.h"
#include "os/file.h"

static bool is_program(const char *path)
{
    struct stat sb;
    return access(path, X_OK) == 0 && stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

static bool is_directory(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

static hl_status put_first(struct hl_env *env, const char *dir)
{
    const char *before = hl_env_get(env, "PATH");
    HL_AUTO(hl_freep) char *path = NULL;
    HL_TRY(
        hl_text_set(&path, "%s:%s", dir,
                    before != NULL && *before != '\0' ? before : "/usr/local/bin:/usr/bin:/bin"));
    return hl_env_set(env, "PATH", path);
}

/* PYTHONHOME would lead the environment's Python to another library. Empty counts as unset. */
static hl_status drop_python_home(struct hl_env *env)
{
    return hl_env_get(env, "PYTHONHOME") != NULL ? hl_env_set(env, "PYTHONHOME", "") : HL_OK;
}

static hl_status set_venv(const char *dir, struct hl_env *env)
{
    if (!is_program(hl_path_in(dir, "bin/python").s))
        return hl_fail(HL_ENOENT,
                       "venv: %s/bin/python is not a program on this node; make the environment "
                       "there, or correct venv in the job file",
                       dir);
    HL_TRY(drop_python_home(env));
    HL_TRY(hl_env_set(env, "VIRTUAL_ENV", dir));
    return put_first(env, hl_path_in(dir, "bin").s);
}

/* ---- conda ---- */

static bool is_conda(const char *dir)
{
    return is_directory(hl_path_in(dir, "conda-meta").s);
}

/* "/opt/conda/bin/conda" -> "/opt/conda" */
static bool root_of(const char *program, struct hl_path *out)
{
    *out = (struct hl_path){0};
    if (program == NULL || (size_t)snprintf(out->s, sizeof(out->s), "%s", program) >= PATH_MAX)
        return false;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(out->s, '/');
        if (slash == NULL || slash == out->s)
            return false;
        *slash = '\0';
    }
    return true;
}

static bool is_env_of(const char *root, const char *name, struct hl_path *out)
{
    *out = hl_path_in(hl_path_in(root, "envs").s, name);
    if (is_conda(out->s))
        return true;
    snprintf(out->s, sizeof(out->s), "%s", root);
    return strcmp(name, "base") == 0 && is_conda(root);
}

static const char *rank_variable(const struct hl_env *env, const char *name)
{
    const char *value = hl_env_get(env, name);
    if (value == NULL)
        value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

/* Searches for a name where conda, mamba and micromamba keep environments. */
static bool find_conda(const struct hl_env *env, const char *name, struct hl_path *out)
{
    static const char *const places[] = {"miniforge3", "mambaforge", "miniconda3", "anaconda3",
                                         "micromamba", "conda",      ".conda"};
    const char *dirs = rank_variable(env, "CONDA_ENVS_PATH"), *home = rank_variable(env, "HOME");
    const char *mamba = rank_variable(env, "MAMBA_ROOT_PREFIX");
    struct hl_path root, program;
    for (const char *p = dirs; p != NULL && *p != '\0';) {
        size_t len = strcspn(p, ":");
        snprintf(root.s, sizeof(root.s), "%.*s", (int)len, p);
        *out = hl_path_in(root.s, name);
        if (is_conda(out->s))
            return true;
        p += len + (p[len] == ':');
    }
    if (root_of(rank_variable(env, "CONDA_EXE"), &root) && is_env_of(root.s, name, out))
        return true;
    if (mamba != NULL && is_env_of(mamba, name, out))
        return true;
    if (hl_process_find("conda", hl_env_get(env, "PATH"), program.s, sizeof(program.s)) == HL_OK &&
        root_of(program.s, &root) && is_env_of(root.s, name, out))
        return true;
    for (size_t i = 0; i < HL_ARRAY_LEN(places); i++)
        if ((home != NULL && is_env_of(hl_path_in(home, places[i]).s, name, out)) ||
            is_env_of(hl_path_in("/opt", places[i]).s, name, out))
            return true;
    return false;
}

static hl_status set_conda(const char *wanted, struct hl_env *env)
{
    struct hl_path dir = hl_path_in("", "");
    bool is_path = strchr(wanted, '/') != NULL;
    if (is_path)
        snprintf(dir.s, sizeof(dir.s), "%s", wanted);
    if (is_path && !is_conda(dir.s))
        return hl_fail(HL_ENOENT,
                       "conda: %s is not a conda environment on this node (it has no conda-meta); "
                       "make it there, or correct conda in the job file",
                       wanted);
    if (!is_path && !find_conda(env, wanted, &dir))
        return hl_fail(HL_ENOENT,
                       "conda: this node has no environment '%s' (looked in CONDA_ENVS_PATH, in "
                       "the conda of PATH, CONDA_EXE and MAMBA_ROOT_PREFIX, in ~ and in /opt); "
                       "give its directory",
                       wanted);
    HL_TRY(drop_python_home(env));
    HL_TRY(hl_env_set(env, "CONDA_PREFIX", dir.s));
    HL_TRY(hl_env_set(env, "CONDA_DEFAULT_ENV", wanted));
    HL_TRY(hl_env_set(env, "CONDA_SHLVL", "1"));
    return put_first(env, hl_path_in(dir.s, "bin").s);
}

/* ---- one interpreter ---- */

/* Writes a script and not a link, because Python looks for its virtual environment next to the path
 * that it was called by.
 */
static hl_status write_wrapper(const char *dir, const char *name, const char *python)
{
    struct hl_path path = hl_path_in(dir, name);
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4 * PATH_MAX);
    if (is_program(path.s)) /* written for the previous rank */
        return HL_OK;
    HL_TRY(hl_buf_printf(&text, "#!/bin/sh\nexec "));
    HL_TRY(hl_buf_shell_word(&text, python));
    HL_TRY(hl_buf_printf(&text, " \"$@\"\n"));
    return hl_file_write_durable(path.s, text.data, text.len, 0755);
}

static hl_status set_interpreter(const struct hl_shim *s, const char *python, struct hl_env *env)
{
    struct hl_path dir = hl_path_in(s->dir, "bin");
    if (!is_program(python))
        return hl_fail(HL_ENOENT,
                       "python: %s is not a program on this node; install it there, or correct "
                       "python in the job file",
                       python);
    HL_TRY(hl_dir_make(dir.s, 0755));
    HL_TRY(write_wrapper(dir.s, "python", python));
    HL_TRY(write_wrapper(dir.s, "python3", python));
    HL_TRY(hl_env_set(env, "HELIOS_PYTHON", python));
    return put_first(env, dir.s);
}

hl_status hl_shim_set_python(const struct hl_shim *s, struct hl_env *env)
{
    const struct hl_container_spec *spec = &s->spec;
    if (spec->venv[0] != '\0')
        return set_venv(spec->venv, env);
    if (spec->conda[0] != '\0')
        return set_conda(spec->conda, env);
    return spec->python[0] != '\0' ? set_interpreter(s, spec->python, env) : HL_OK;
}
