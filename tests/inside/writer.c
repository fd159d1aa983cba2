/* Text that is written (base/writer.c): the bytes of printf, in buffers of all sizes. */

TEST_ONCE(writer_has_the_digits_of_printf)
{
    const int64_t numbers[] = {0, 7, -1, 10, -10, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    char text[32], want[32];
    for (int i = 0; i < ZFI_COUNT(numbers); i++) {
        zfi_writer w = zfi_writer_of(NULL, text, sizeof text);
        zfi_print_integer(&w, "x=", numbers[i]), zfi_print_end(&w);
        snprintf(want, sizeof want, "x=%lld", (long long)numbers[i]);
        CHECK(t, strcmp(text, want) == 0 && w.length == strlen(want));
        CHECK(t, w.hash == zfi_hash_bytes(ZFI_HASH_START, want, strlen(want)));
    }
}

TEST_ONCE(writer_cuts_text_where_the_buffer_ends)
{
    for (size_t size = 0; size < 16; size++) {
        char text[16], want[17] = "ab -123 cde";
        zfi_writer w = zfi_writer_of(NULL, text, size);
        memset(text, '#', sizeof text);
        zfi_print_text(&w, "ab"), zfi_print_integer(&w, " ", -123), zfi_print(&w, " %s", "cde");
        zfi_print_end(&w);
        CHECK(t, w.length == 11);
        if (size && size < 12) want[size - 1] = '\0';
        CHECK(t, !size || strcmp(text, want) == 0);
        for (size_t i = size; i < sizeof text; i++) CHECK(t, text[i] == '#');
    }
}
