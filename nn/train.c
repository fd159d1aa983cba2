/* A training loop: feed, set the learning rate, step, report. Copy it when you need more. */

ZF_API zf_status zf_nn_train(const zf_nn_train_desc *d)
{
    if (!d || !d->program) return ZF_ERR_ARGUMENT;
    while (zf_program_step(d->program) < d->steps) {
        int64_t step = zf_program_step(d->program);
        zf_tensor rate = d->lr;
        zf_program *p = d->turn ? d->turn(d->user, step, &rate) : d->program;
        float lr = (float)zf_schedule_at(&d->schedule, step + !d->schedule.from_zero);
        zf_status status = ZF_OK;
        /* Before the feed, which may run micro-batches: these need a value for every input. */
        if (rate.graph || rate.id) status = zf_write(p, rate, &lr, sizeof lr);
        if (!status && d->feed) status = d->feed(d->user, p, step);
        if (!status) status = zf_step(p);
        if (status) return status;
        if (d->report && !d->report(d->user, p, step + 1, lr)) break;
    }
    return ZF_OK;
}
