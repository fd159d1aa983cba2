/* Roles: what an output, a parameter or a state is to the library, whatever it is called. Passes, the store and
 * the verifier ask for the role of a node and for the parameter that it belongs to.
 *
 *     output %5 "total" role=loss
 *     %7 = state "adamw.m/w" : f32[4] role=moment of=%2
 *     %3 = param "q.lora_A.weight" : f32[2,4] role=adapter
 *
 * States of a parameter are named OPTIMIZER.PART/PARAM, also in checkpoints, and those of a training
 * with a name TRAINING:OPTIMIZER.PART/PARAM. The library makes these
 * names, and a state that it makes has the role of its PART. Only files without roles are read by
 * names (zfi_role_in_name). */

/* X(role, its text, the PART of the names of such states) */
#define ZFI_ROLES(X)                                                                               \
    X(NONE, "", "")                                                                                \
    X(LOSS, "loss", "")                /* the output of the value that zf_autograd was given */    \
    X(NORM, "grad_norm", "")           /* the output of the global norm of gradients */            \
    X(WANTED, "wanted_gradient", "")   /* before zf_autograd: an output of this value's gradient */ \
    X(ADAPTER, "adapter", "")          /* a parameter of the graph's adapter (zf_lora) */          \
    X(MASTER, "master", "master")      /* f32 weights of a bf16 or f16 parameter */                \
    X(AVERAGE, "average", "average")   /* a moving average of the parameter (zf_ema) */            \
    X(MOMENT, "moment", "m")           /* a mean of gradients */                                   \
    X(MOMENTUM, "momentum", "momentum") /* a sum of gradients */                                   \
    X(VARIANCE, "variance", "v")       /* a mean of squared gradients */                           \
    X(FRESH, "fresh_variance", "fresh") /* the same, which goes on where the other is frozen */    \
    X(OWN_MOMENT, "own_moment", "own_m") /* of each rank, between averages */                      \
    X(DRIFT, "drift", "u")             /* the steps of each rank since the last average */         \
    X(WORKER_ERROR, "worker_error", "worker") /* what signs have left of a rank's momentum, */     \
    X(SERVER_ERROR, "server_error", "server") /* and of the average */                             \
    X(ERROR, "error", "error")         /* what quantised gradients have left to send, */           \
    X(ERROR_BETWEEN, "error_between", "between") /* and between nodes */                           \
    X(GRADIENT, "gradient", "gradient") /* the gradient of the step before */

typedef enum zfi_role {
#define ZFI_ROLE(role, text, part) ZFI_ROLE_##role,
    ZFI_ROLES(ZFI_ROLE)
#undef ZFI_ROLE
        ZFI_ROLE_COUNT
} zfi_role;

static const struct zfi_role_names {
    const char *text, *part;
} zfi_roles[ZFI_ROLE_COUNT] = {
#define ZFI_ROLE(role, text, part) {text, part},
    ZFI_ROLES(ZFI_ROLE)
#undef ZFI_ROLE
};

/* What has the role: an output, a parameter, or a state of a parameter. */
static zf_op zfi_op_of_role(zfi_role role)
{
    return role == ZFI_ROLE_LOSS || role == ZFI_ROLE_NORM || role == ZFI_ROLE_WANTED
               ? ZF_OP_output
           : role == ZFI_ROLE_ADAPTER ? ZF_OP_param
                                      : ZF_OP_state;
}

/* What quantised gradients have left to send (zf_zero_desc.loco). */
static bool zfi_is_left(zfi_role role)
{
    return role == ZFI_ROLE_ERROR || role == ZFI_ROLE_ERROR_BETWEEN;
}

/* The role of this text; NONE where there is none. */
static zfi_role zfi_role_called(const char *text, size_t length)
{
    for (int role = 1; role < ZFI_ROLE_COUNT; role++)
        if (strlen(zfi_roles[role].text) == length &&
            !memcmp(zfi_roles[role].text, text, length))
            return (zfi_role)role;
    return ZFI_ROLE_NONE;
}

/* The role of the states that the library names OPTIMIZER.PART, or OPTIMIZER.PART/PARAM. */
static zfi_role zfi_role_of_part(const char *name)
{
    const size_t dot = strcspn(name, "./"), from = dot + (name[dot] == '.'),
                 length = strcspn(name + from, "/");
    for (int role = 1; role < ZFI_ROLE_COUNT; role++)
        if (name[dot] == '.' && length && strlen(zfi_roles[role].part) == length &&
            !memcmp(zfi_roles[role].part, name + from, length))
            return (zfi_role)role;
    return ZFI_ROLE_NONE;
}

/* The role of a state in a file, which notes none: by its name. *param is the name of its
 * parameter. */
static zfi_role zfi_role_in_name(const char *name, const char **param)
{
    const char *slash = strchr(name, '/');
    const zfi_role role = slash ? zfi_role_of_part(name) : ZFI_ROLE_NONE;
    const size_t training = strcspn(name, ":./");
    *param = slash ? slash + 1 : "";
    if (name[training] == ':') name += training + 1;
    return zfi_is_left(role) && strncmp(name, "loco.", 5) ? ZFI_ROLE_NONE : role;
}
