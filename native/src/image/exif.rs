//! EXIF orientation, where JPEG, PNG and WebP files keep it, as PIL finds it. What can't be read says nothing.

fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

/// The orientation in a block of EXIF data, with or without its "Exif" heading.
pub fn orientation(block: &[u8]) -> Option<u16> {
    let tiff = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let b: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) })
    };
    let u32_at = |at: usize| {
        let b: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) })
    };
    let directory = u32_at(4)? as usize;
    for i in 0..u16_at(directory)? as usize {
        let entry = directory.checked_add(2 + 12 * i)?;
        if u16_at(entry)? != 0x112 {
            continue;
        }
        // A byte, a short or a long; one of it.
        return match u16_at(entry + 2)? {
            1 => tiff.get(entry + 8).map(|&b| b as u16),
            3 => u16_at(entry + 8),
            4 => u32_at(entry + 8).and_then(|v| v.try_into().ok()),
            _ => None,
        };
    }
    None
}

/// The orientation in XMP, which counts where EXIF says none.
pub fn xmp_orientation(text: &[u8]) -> Option<u16> {
    const NAME: &[u8] = b"tiff:Orientation";
    let mut rest = text;
    while let Some(at) = rest.windows(NAME.len()).position(|w| w == NAME) {
        rest = &rest[at + NAME.len()..];
        let digit = match rest {
            [b'=', b'"', d, ..] | [b'>', d, ..] => *d,
            _ => continue,
        };
        if digit.is_ascii_digit() {
            return Some((digit - b'0') as u16);
        }
    }
    None
}

/// The orientation of a JPEG file, from the segments before its first scan; 1: none.
pub fn of_jpeg(file: &[u8]) -> u16 {
    const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
    let (mut exif, mut xmp, mut at) = (None, None, 2);
    while file.get(at) == Some(&0xff) {
        let marker = file.get(at + 1).copied().unwrap_or(0xda);
        match marker {
            0xff => {
                at += 1;
                continue;
            }
            0xda | 0xd9 => break,
            _ => {}
        }
        let Some(length) = be16(file, at + 2) else { break };
        let Some(body) = file.get(at + 4..at + 2 + (length as usize).max(2)) else { break };
        if marker == 0xe1 && body.starts_with(b"Exif\0\0") && exif.is_none() {
            exif = orientation(body);
        } else if marker == 0xe1 && body.starts_with(XMP) && xmp.is_none() {
            xmp = xmp_orientation(&body[XMP.len()..]);
        }
        at += 2 + (length as usize).max(2);
    }
    exif.or(xmp).unwrap_or(1)
}

/// The orientation of a WebP file; 1: none.
pub fn of_webp(file: &[u8]) -> u16 {
    let (mut exif, mut xmp, mut at) = (None, None, 12);
    while let (Some(name), Some(size)) = (file.get(at..at + 4), file.get(at + 4..at + 8)) {
        let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize;
        let Some(body) = file.get(at + 8..).and_then(|b| b.get(..size)) else { break };
        match name {
            b"EXIF" => exif = exif.or(orientation(body)),
            b"XMP " => xmp = xmp.or(xmp_orientation(body)),
            _ => {}
        }
        at += 8 + size + size % 2;
    }
    exif.or(xmp).unwrap_or(1)
}

/// The orientation of a PNG file, wherever in it the chunk is; 1: none.
pub fn of_png(file: &[u8]) -> u16 {
    const XMP: &[u8] = b"XML:com.adobe.xmp\0";
    let (mut exif, mut xmp, mut at) = (None, None, 8);
    while let (Some(size), Some(name)) = (file.get(at..at + 4), file.get(at + 4..at + 8)) {
        let size = u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize;
        let Some(body) = file.get(at + 8..).and_then(|b| b.get(..size)) else { break };
        match name {
            b"eXIf" => exif = exif.or(orientation(body)),
            b"iTXt" if body.starts_with(XMP) => xmp = xmp.or(xmp_orientation(body)),
            b"IEND" => break,
            _ => {}
        }
        at += 12 + size;
    }
    exif.or(xmp).unwrap_or(1)
}
