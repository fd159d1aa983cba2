/* Roles: what an output, a parameter or a state is to the library, whatever it is called. Passes,
 * the store, checkpoints and the verifier ask for the role of a node and for the parameter that it
 * belongs to.
 *
 *     output %5 "total" role=loss
 *     %3 = param "q.lora_A.weight" : f32[2,4] role=adapter
 *     %7 = state "adamw.m/w" : f32[4] role=moment of=%2
 *     %8 = state "adamw.step" : i64[] role=count
 *
 * States of a parameter are named OPTIMIZER.PART/PARAM, also in checkpoints; those of all are named
 * OPTIMIZER.PART. The name of a training comes first: TRAINING:OPTIMIZER.PART/PARAM. The
 * library makes these names, and a state that it makes has the role of its PART. Only files without
 * roles are read by names (zfi_role_in_name). */

/* What has a role. */
typedef enum zfi_role_kind {
    ZFI_OF_NOTHING,
    ZFI_OF_OUTPUT,
    ZFI_OF_PARAM,
    ZFI_OF_STATE,   /* a state of one parameter */
    ZFI_OF_TRAINING /* a state of all parameters */
} zfi_role_kind;

/* X(role, what has it, its text, the PART of the names of such states) */
#define ZFI_ROLES(X)                                                                               \
    X(NONE, NOTHING, "", "")                                                                       \
    /* The output of the value that zf_autograd was given */                                       \
    X(LOSS, OUTPUT, "loss", "")                                                                    \
    /* The output of the global norm of gradients */                                               \
    X(NORM, OUTPUT, "grad_norm", "")                                                               \
    /* Before zf_autograd: an output of this value's gradient */                                   \
    X(WANTED, OUTPUT, "wanted_gradient", "")                                                       \
    X(ADAPTER, PARAM, "adapter", "")             /* of the graph's adapter (zf_lora) */            \
    X(MASTER, STATE, "master", "master")         /* f32 weights of a bf16 or f16 parameter */      \
    X(AVERAGE, STATE, "average", "average")      /* a moving average of the parameter (zf_ema) */  \
    X(MOMENT, STATE, "moment", "m")              /* a mean of gradients */                         \
    X(MOMENTUM, STATE, "momentum", "momentum")   /* a sum of gradients */                          \
    X(VARIANCE, STATE, "variance", "v")          /* a mean of squared gradients */                 \
    /* The same, which goes on where the other is frozen */                                        \
    X(FRESH, STATE, "fresh_variance", "fresh")                                                     \
    X(OWN_MOMENT, STATE, "own_moment", "own_m")  /* of each rank, between averages */              \
    X(DRIFT, STATE, "drift", "u")                /* steps of each rank since the last average */   \
    /* What signs have left of a rank's momentum, and of the average */                            \
    X(WORKER_ERROR, STATE, "worker_error", "worker")                                               \
    X(SERVER_ERROR, STATE, "server_error", "server")                                               \
    /* What quantised gradients have left to send, and have left between nodes */                  \
    X(ERROR, STATE, "error", "error")                                                              \
    X(ERROR_BETWEEN, STATE, "error_between", "between")                                            \
    X(GRADIENT, STATE, "gradient", "gradient")   /* the gradient of the step before */             \
    X(COUNT, TRAINING, "count", "step")          /* the number of updates */                       \
    /* The number of updates of variances, where these are fewer */                                \
    X(VARIANCE_COUNT, TRAINING, "variance_count", "variance_step")                                 \
    X(WEIGHT, TRAINING, "weight", "weight")      /* the sum of the weights of a decaying mean */   \
    X(RATE, TRAINING, "rate", "rate")            /* the sum of rates since the last average */     \
    /* 1-bit LAMB: of each parameter, the mean trust ratio and the factor of the step before */    \
    X(COEFFICIENT, TRAINING, "coefficient", "coefficient")                                         \
    X(FACTOR, TRAINING, "factor", "factor")                                                        \
    X(SCALE, TRAINING, "scale", "scale")         /* the loss scale; delayed: what divides by it */ \
    X(HYSTERESIS, TRAINING, "hysteresis", "hysteresis") /* overflows left before it shrinks */     \
    X(ITERATION, TRAINING, "iteration", "iteration")    /* the number of steps, and */             \
    X(OVERFLOW, TRAINING, "last_overflow", "last_overflow") /* the one with the last overflow */   \
    X(SKIPPED, TRAINING, "skipped", "skipped")   /* the number of skipped steps */

typedef enum zfi_role {
#define ZFI_ROLE(role, of, text, part) ZFI_ROLE_##role,
    ZFI_ROLES(ZFI_ROLE)
#undef ZFI_ROLE
        ZFI_ROLES_END
} zfi_role;

static const struct {
    zfi_role_kind kind;
    const char *text, *part;
} zfi_roles[ZFI_ROLES_END] = {
#define ZFI_ROLE(role, of, text, part) {ZFI_OF_##of, text, part},
    ZFI_ROLES(ZFI_ROLE)
#undef ZFI_ROLE
};

/* The operator of what has the role. */
static zf_op zfi_op_of_role(zfi_role role)
{
    static const zf_op ops[] = {ZF_OP_none, ZF_OP_output, ZF_OP_param, ZF_OP_state, ZF_OP_state};
    return ops[zfi_roles[role].kind];
}

/* What quantised gradients have left to send (zf_zero_desc.loco). */
static bool zfi_is_left(zfi_role role)
{
    return role == ZFI_ROLE_ERROR || role == ZFI_ROLE_ERROR_BETWEEN;
}

/* The role of this text; NONE where there is none. */
static zfi_role zfi_role_called(const char *text, size_t length)
{
    for (int role = 1; role < ZFI_ROLES_END; role++)
        if (strlen(zfi_roles[role].text) == length &&
            !memcmp(zfi_roles[role].text, text, length))
            return (zfi_role)role;
    return ZFI_ROLE_NONE;
}

/* The role of the states that the library names OPTIMIZER.PART/PARAM or OPTIMIZER.PART. */
static zfi_role zfi_role_of_part(const char *name)
{
    const size_t dot = strcspn(name, "./"), from = dot + (name[dot] == '.'),
                 length = strcspn(name + from, "/");
    for (int role = 1; role < ZFI_ROLES_END; role++)
        if (name[dot] == '.' && length && strlen(zfi_roles[role].part) == length &&
            !memcmp(zfi_roles[role].part, name + from, length))
            return (zfi_role)role;
    return ZFI_ROLE_NONE;
}

/* The role of a state of a parameter in a file without roles: by its name. *param is the name of
 * its parameter; NULL: it has none. */
static zfi_role zfi_role_in_name(const char *name, const char **param)
{
    const char *slash = strchr(name, '/');
    const zfi_role role = slash ? zfi_role_of_part(name) : ZFI_ROLE_NONE;
    const size_t training = strcspn(name, ":./");
    *param = slash ? slash + 1 : NULL;
    if (name[training] == ':') name += training + 1;
    if (zfi_roles[role].kind != ZFI_OF_STATE) return ZFI_ROLE_NONE;
    return zfi_is_left(role) && strncmp(name, "loco.", 5) ? ZFI_ROLE_NONE : role;
}
