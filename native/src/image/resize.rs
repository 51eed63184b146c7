//! Resizing, equal to the bit to PyTorch's and to Pillow's, row by row: nothing but the result has an image's size.
use super::axis::{Axis, Filter, Rounding};
use super::rows::{planes, stride, Rows, Sink};
use super::{horizontal, vertical, Bad};

/// Whose arithmetic it is, and which pass goes first. The order shows in the result, as the values between the passes
/// are rounded to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// PyTorch and torchvision: horizontal first.
    Torch,
    /// Pillow up to 12: horizontal first.
    Pillow,
    /// Pillow from 13 on: the pass that saves more work goes first.
    PillowCheapest,
}

impl Rule {
    pub fn from_number(n: i32) -> Option<Rule> {
        [Rule::Torch, Rule::Pillow, Rule::PillowCheapest].get(usize::try_from(n).ok()?).copied()
    }

    fn vertical_first(self, from: (usize, usize), to: (usize, usize)) -> bool {
        let saved = |from: usize, to: usize| from as i64 - to as i64;
        self == Rule::PillowCheapest && to.1 < from.1 && saved(from.1, to.1) > 2 * saved(from.0, to.0)
    }
}

/// What to make of an image.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub width: usize,
    pub height: usize,
    pub filter: Filter,
    pub rule: Rule,
}

/// Memory kept between images.
#[derive(Default)]
pub struct Scratch {
    ring: Vec<u8>,
    line: Vec<u8>,
    sums: Vec<i32>,
}

impl Scratch {
    /// Bytes held.
    pub fn size(&self) -> usize {
        self.ring.capacity() + self.line.capacity() + 4 * self.sums.capacity()
    }
}

/// Pulls all rows of an image and gives the sink those of the resized one. `narrow` keeps to code without vector
/// instructions, for tests.
pub fn resize(
    rows: &mut dyn Rows,
    to: Target,
    sink: &mut dyn Sink,
    scratch: &mut Scratch,
    narrow: bool,
) -> Result<(), Bad> {
    let from = rows.size();
    let rounding = if to.rule == Rule::Torch { Rounding::Torch } else { Rounding::Pillow };
    let across = (from.0 != to.width).then(|| Axis::new(from.0, to.width, to.filter, rounding));
    let across = across.map(|axis| horizontal::Plan::new(axis, rounding == Rounding::Torch && !narrow));
    let down = (from.1 != to.height).then(|| Axis::new(from.1, to.height, to.filter, rounding));
    let vector = !narrow && rounding == Rounding::Torch && vertical::can_run();
    let passes = Passes { across, down, from, to, vector };
    if to.rule.vertical_first(from, (to.width, to.height)) {
        passes.down_then_across(rows, sink, scratch)
    } else {
        passes.across_then_down(rows, sink, scratch)
    }
}

struct Passes {
    across: Option<horizontal::Plan>, // None: the width stays
    down: Option<Axis>,               // None: the height stays
    from: (usize, usize),
    to: Target,
    vector: bool, // the vertical pass has 16-bit weights, and the machine the instructions for them
}

impl Passes {
    /// How many rows an output row is made of at most.
    fn window(&self) -> usize {
        self.down.as_ref().map_or(1, |d| d.count.iter().copied().max().unwrap_or(1).max(1) as usize)
    }

    /// The first input row of output row `y`, and how many there are.
    fn span(&self, y: usize) -> (usize, usize) {
        self.down.as_ref().map_or((y, 1), |d| (d.start[y] as usize, d.count[y] as usize))
    }

    fn across_then_down(&self, rows: &mut dyn Rows, sink: &mut dyn Sink, scratch: &mut Scratch) -> Result<(), Bad> {
        let (wide, narrow) = (stride(self.from.0), stride(self.to.width));
        let slots = self.window();
        grow(&mut scratch.line, 3 * wide)?;
        grow(&mut scratch.ring, 3 * narrow * slots)?;
        let mut have = 0;
        for y in 0..self.to.height {
            let (first, count) = self.span(y);
            while have < first + count {
                if self.down.is_none() {
                    self.read(rows, sink.row(y), &mut scratch.line)?;
                } else {
                    let at = (have % slots) * 3 * narrow;
                    self.read(rows, planes(&mut scratch.ring[at..at + 3 * narrow], narrow), &mut scratch.line)?;
                }
                have += 1;
            }
            if let Some(down) = self.down.as_ref().filter(|_| sink.wants(y)) {
                let ring = Ring { data: &scratch.ring, stride: narrow, slots };
                self.blend(down, y, &ring, sink.row(y), self.to.width, &mut scratch.sums);
            }
            sink.done(y);
        }
        rest(rows, self.from.1 - have, &mut scratch.line, wide)
    }

    fn down_then_across(&self, rows: &mut dyn Rows, sink: &mut dyn Sink, scratch: &mut Scratch) -> Result<(), Bad> {
        let wide = stride(self.from.0);
        let slots = self.window();
        grow(&mut scratch.line, 3 * wide)?;
        grow(&mut scratch.ring, 3 * wide * slots)?;
        let mut have = 0;
        for y in 0..self.to.height {
            let (first, count) = self.span(y);
            while have < first + count {
                let at = (have % slots) * 3 * wide;
                rows.next(planes(&mut scratch.ring[at..at + 3 * wide], wide))?;
                have += 1;
            }
            // Vertical first implies that the height changes.
            let Some(down) = &self.down else { return Err(Bad::Internal) };
            if sink.wants(y) {
                let line = planes(&mut scratch.line, wide);
                let ring = Ring { data: &scratch.ring, stride: wide, slots };
                self.blend(down, y, &ring, line, self.from.0, &mut scratch.sums);
                self.squeeze(&scratch.line, wide, sink.row(y));
            }
            sink.done(y);
        }
        rest(rows, self.from.1 - have, &mut scratch.line, wide)
    }

    /// Reads a row and brings it to the target's width.
    fn read(&self, rows: &mut dyn Rows, out: [&mut [u8]; 3], line: &mut [u8]) -> Result<(), Bad> {
        if self.across.is_none() {
            return rows.next(out);
        }
        let wide = stride(self.from.0);
        rows.next(planes(line, wide))?;
        self.squeeze(line, wide, out);
        Ok(())
    }

    fn squeeze(&self, line: &[u8], wide: usize, out: [&mut [u8]; 3]) {
        let source = [&line[..wide], &line[wide..2 * wide], &line[2 * wide..3 * wide]];
        match &self.across {
            Some(plan) => plan.run(source, out),
            None => out.into_iter().zip(source).for_each(|(o, s)| o[..self.to.width].copy_from_slice(&s[..self.to.width])),
        }
    }

    /// Makes output row `y` of the rows in the ring.
    fn blend(&self, down: &Axis, y: usize, ring: &Ring, out: [&mut [u8]; 3], width: usize, sums: &mut Vec<i32>) {
        let (first, count) = self.span(y);
        let weights = down.of(y);
        for (plane, out) in out.into_iter().enumerate() {
            let rows = (0..count).map(|i| ring.row(first + i, plane));
            if self.vector {
                vertical::run(&vertical::pair(rows, weights), down.bits, width, out);
            } else {
                vertical::run_wide(rows, weights, down.bits, sums, &mut out[..width]);
            }
        }
    }
}

/// The last few rows of an image.
struct Ring<'a> {
    data: &'a [u8],
    stride: usize,
    slots: usize,
}

impl<'a> Ring<'a> {
    fn row(&self, y: usize, plane: usize) -> &'a [u8] {
        let at = ((y % self.slots) * 3 + plane) * self.stride;
        &self.data[at..at + self.stride]
    }
}

/// Reads the rows that no output needs: a broken end is an error all the same.
fn rest(rows: &mut dyn Rows, count: usize, line: &mut [u8], wide: usize) -> Result<(), Bad> {
    for _ in 0..count {
        rows.next(planes(line, wide))?;
    }
    Ok(())
}

/// Makes room for `len` bytes, or says that there is none.
pub fn grow(buffer: &mut Vec<u8>, len: usize) -> Result<(), Bad> {
    if buffer.len() < len {
        buffer.try_reserve_exact(len - buffer.len()).map_err(|_| Bad::Memory)?;
        buffer.resize(len, 0);
    }
    Ok(())
}
