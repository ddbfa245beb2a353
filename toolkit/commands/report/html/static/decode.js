"use strict";
// Unpacks the page's numbers: packing.py says how they are packed.

const WIDTH_OF_DOUBLES = 0;

async function inflated(text) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Arrays {
  constructor(bytes, entries) {
    this.bytes = bytes;
    this.entries = entries;
    this.known = new Map();
  }

  /** The array of that number; a gap is null. Callers do not change it. */
  get(number) {
    let values = this.known.get(number);
    if (values === undefined) {
      const [offset, count, width, decimals, first, mask] = this.entries[number];
      values = width === WIDTH_OF_DOUBLES ? this.doubles(offset, count) : this.decimals(offset, count, width, decimals, first);
      if (mask >= 0) for (let i = 0; i < count; i++) if ((this.bytes[mask + (i >> 3)] >> (i & 7)) & 1) values[i] = null;
      this.known.set(number, values);
    }
    return values;
  }

  doubles(offset, count) {
    const bytes = new Uint8Array(count * 8);
    for (let plane = 0; plane < 8; plane++) for (let i = 0; i < count; i++) bytes[i * 8 + plane] = this.bytes[offset + plane * count + i];
    return Array.from(new Float64Array(bytes.buffer));
  }

  decimals(offset, count, width, decimals, first) {
    const values = new Array(count);
    const power = 10 ** Math.abs(decimals);
    let integer = first;
    for (let i = 0; i < count; i++) {
      let zigzag = 0;
      for (let plane = width - 1; plane >= 0; plane--) zigzag = zigzag * 256 + this.bytes[offset + plane * count + i];
      integer += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
      values[i] = decimals >= 0 ? integer / power : integer * power;
    }
    return values;
  }
}
