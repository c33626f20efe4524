SHARE {
    const int64_t width = b->gate_dims[1];
    EACH(t, b->gate_dims[0]) {
        const float *gate = b->gate + t * width, *up = b->up + t * width;
        float *out = b->out + t * width;
        for (int64_t i = 0; i < width; i++) out[i] = (float)(gate[i] / (1 + exp(-(double)gate[i])) * up[i]);
    }
}
