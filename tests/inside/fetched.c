/* Experts of whole blocks of a disk: of these it reads the ones with rows, and no others. */

static const char blocks_of_experts[] =
    "%1 = input \"x\" : f32[4,512]\n%2 = input \"of\" : i32[4,1]\n"
    "%3 = expert_rows %2 {experts=4 rows=4} : i32[4]\n%4 = saved %3 : i32[4,2]\n"
    "%5 = saved %3 {index=1} : i32[4,1]\n%6 = dispatch %1, %3, %5 : f32[4,512]\n"
    "%7 = param \"w\" {init=ones} : f32[4,512,512]\n%8 = grouped_linear %6, %7, %4 : f32[4,512]\n"
    "%9 = combine %8, %3, %5 : f32[4,512]\noutput %9 \"y\"\n";

TEST_ONCE(fetched_experts_are_what_a_disk_reads)
{
    static const int32_t of[][4] = {{1, 1, 1, 1}, {3, 0, 3, 0}, {1, 2, 2, 1}, {3, 2, 1, 0}};
    static float x[4][512], y[4][512];
    const char *folder = test_path("fetched");
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    zf_program *p;
    zfi_disk *disk;
    mkdir(folder, 0700);
    NEED(t, g = zf_graph_parse(blocks_of_experts, strlen(blocks_of_experts), NULL, &error), &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_zero(g, &(zf_zero_desc){.experts_apart = true}), zf_graph_error(g));
    OK(t, zf_offload(g, &(zf_offload_desc){.parameters = ZF_DISK}), zf_graph_error(g));
    NEED(t, p = zf_compile(g, &(zf_compile_desc){.offload_dir = folder}), NULL);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    for (int k = 0; k < 2048; k++) x[k / 512][k % 512] = (float)(k / 512 + 1);
    for (int n = 0; n < 4; n++) {
        const int experts = n == 0 ? 1 : n == 3 ? 4 : 2;
        int64_t before;
        disk = NULL;
        for (int32_t k = 0; k < zfi_len(p->store->pieces); k++)
            if (p->store->pieces[k].disk) disk = p->store->pieces[k].disk;
        CHECK(t, disk);
        before = zfi_disk_info_of(disk).bytes_read;
        OK(t, zf_write(p, zf_graph_find(g, "x"), x, sizeof x), zf_program_error(p));
        OK(t, zf_write(p, zf_graph_find(g, "of"), of[n], sizeof of[n]), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, zf_graph_find(g, "y"), y, sizeof y), zf_program_error(p));
        CHECK(t, y[0][0] == 512 && y[3][511] == 4 * 512);
        CHECK(t, zfi_disk_info_of(disk).bytes_read - before == (int64_t)experts << 20);
        CHECK(t, zf_program_info_of(p).counted.read.bytes == (size_t)experts << 20);
        CHECK(t, zf_program_info_of(p).plan.traffic.read.bytes == 4 << 20);
    }
}
