SHARE {
    const int64_t tokens = b->q_dims[0], heads = b->q_dims[1], dim = b->q_dims[2];
    const int64_t capacity = b->lists_dims[1], row_bytes = b->k_dims[1];
    const int64_t kv_heads = row_bytes / BYTES(dim);
    const double scale = b->scale, softcap = b->softcap;
    EACH(th, tokens * heads) {
        const int64_t t = th / heads, h = th % heads, g = h * kv_heads / heads;
        const int32_t *span = b->spans + 3 * t;
        const int32_t *cells = b->lists + (int64_t)span[0] * capacity;
        const float *q = b->q + th * dim;
        float *out = b->out + th * dim;
        const double sink = b->sinks[h];
        double sum = sink > -INFINITY, most = sink, values[1024];
        for (int64_t d = 0; d < dim; d++) values[d] = 0;
        for (int64_t c = span[1]; c < span[2]; c++) {
            const int64_t cell = cells[c];
            const uint8_t *k = b->k + cell * row_bytes + g * BYTES(dim);
            const uint8_t *v = b->v + cell * row_bytes + g * BYTES(dim);
            double score = 0;
            for (int64_t d = 0; d < dim; d++) score += (double)q[d] * element(k, d);
            score *= scale;
            if (softcap) score = softcap * tanh(score / softcap);
            const double distance = (double)b->positions[t] - b->cell_positions[cell];
            score -= b->slopes[h] * distance;
            const double before = score > most || score != score ? exp(most - score) : 1;
            most = before == 1 ? most : score;
            const double power = exp(score - most);
            sum = sum * before + power;
            for (int64_t d = 0; d < dim; d++) values[d] = values[d] * before + power * element(v, d);
        }
        for (int64_t d = 0; d < dim; d++) out[d] = sum == 0 ? 0 : (float)(values[d] / sum);
    }
}
