SHARE {
    const int64_t tokens = b->mask_dims[0], neurons = b->mask_dims[1];
    if (thread) return;
    int64_t count = 0;
    for (int64_t i = 0; i < neurons; i++) {
        int any = 0;
        for (int64_t t = 0; t < tokens; t++) any |= b->mask[t * neurons + i];
        if (any) b->rows[count++] = (int32_t)i;
    }
    for (int64_t i = count; i < neurons; i++) b->rows[i] = 0;
    b->count[0] = (int32_t)count;
}
