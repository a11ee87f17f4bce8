import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.ManifestWriter;
import org.apache.iceberg.PartitionData;
import org.apache.iceberg.PartitionField;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.shaded.org.apache.avro.file.DataFileStream;
import org.apache.iceberg.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.iceberg.shaded.org.apache.avro.generic.GenericFixed;
import org.apache.iceberg.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/**
 * Iceberg's own Java library as the judge of metadata that the catalog made.
 *
 * <p>Each line of stdin is "load JSON" or "build JSON" and is answered by one line: "ok", or the library's refusal.
 * "load" parses the metadata as every Java engine does. "build" also indexes the names of the schema as Spark does,
 * writes a manifest with partition values by the default spec, and reads it as plain Avro and by the library.
 */
public final class IcebergJudge {
    private IcebergJudge() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int space = line.indexOf(' ');
            String answer = "ok";
            try {
                TableMetadata metadata = TableMetadataParser.fromJson("file:/judged/metadata/1.json", line.substring(space + 1));
                if (line.substring(0, space).equals("build")) {
                    build(metadata);
                }
            } catch (Exception | StackOverflowError error) {
                answer = error.getClass().getSimpleName() + ": " + String.valueOf(error.getMessage()).replaceAll("\\s+", " ");
            }
            System.out.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        }
    }

    private static void build(TableMetadata metadata) throws Exception {
        Schema schema = metadata.schema();
        schema.findField("id");
        schema.caseInsensitiveFindField("id");
        PartitionSpec spec = metadata.spec();
        List<PartitionData> rows = new ArrayList<>();
        rows.add(new PartitionData(spec.partitionType()));
        for (boolean low : new boolean[] {true, false}) {
            PartitionData row = new PartitionData(spec.partitionType());
            for (int i = 0; i < spec.fields().size(); i++) {
                PartitionField field = spec.fields().get(i);
                Type source = schema.findType(field.sourceId());
                row.set(i, value(field.transform(), source, low));
            }
            rows.add(row);
        }
        InMemoryFileIO io = new InMemoryFileIO();
        ManifestWriter<DataFile> writer = ManifestFiles.write(metadata.formatVersion(), spec, io.newOutputFile("m.avro"), 1L);
        try (writer) {
            for (PartitionData row : rows) {
                writer.add(DataFiles.builder(spec).withPath("f.parquet").withFileSizeInBytes(1).withRecordCount(1).withPartition(row).build());
            }
        }
        ManifestFile manifest = writer.toManifestFile();
        // Iceberg's own reader and writer may agree on bytes that the file's Avro schema does not describe.
        int plain = 0;
        try (DataFileStream<GenericRecord> records = new DataFileStream<>(io.newInputFile("m.avro").newStream(), new GenericDatumReader<>())) {
            for (GenericRecord record : records) {
                GenericRecord partition = (GenericRecord) ((GenericRecord) record.get("data_file")).get("partition");
                PartitionData expected = rows.get(plain++);
                for (int i = 0; i < expected.size(); i++) {
                    if (partition.get(i) instanceof GenericFixed fixed
                            && expected.getType(i).typeId() == Type.TypeID.FIXED
                            && !ByteBuffer.wrap(fixed.bytes()).equals(expected.get(i, ByteBuffer.class))) {
                        throw new IllegalStateException("the manifest has " + partition + " for " + expected);
                    }
                }
            }
        }
        int number = 0;
        try (ManifestReader<DataFile> reader = ManifestFiles.read(manifest, io, metadata.specsById())) {
            for (DataFile file : reader) {
                PartitionData expected = rows.get(number++);
                if (!same(file.partition(), expected)) {
                    throw new IllegalStateException("partition " + expected + " is read as " + file.partition());
                }
            }
        }
        if (number != rows.size()) {
            throw new IllegalStateException(number + " of " + rows.size() + " partitions are read");
        }
    }

    private static boolean same(StructLike one, PartitionData other) {
        for (int i = 0; i < other.size(); i++) {
            if (!Objects.deepEquals(one.get(i, Object.class), other.get(i))) {
                return false;
            }
        }
        return true;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object value(Transform transform, Type source, boolean low) {
        return transform.bind(source).apply(sample(source, low));
    }

    private static Object sample(Type type, boolean low) {
        switch (type.typeId()) {
            case BOOLEAN:
                return low;
            case INTEGER:
            case DATE:
                return low ? -7 : 7;
            case LONG:
            case TIME:
            case TIMESTAMP:
            case TIMESTAMP_NANO:
                return low ? 7L : 70_000_000_000_000L;
            case FLOAT:
                return low ? -1.5f : 2.5f;
            case DOUBLE:
                return low ? -1.5 : 2.5;
            case STRING:
                return low ? "" : "données";
            case UUID:
                return new UUID(low ? 0 : 7, 7);
            case FIXED:
                byte[] bytes = new byte[((Types.FixedType) type).length()];
                Arrays.fill(bytes, (byte) (low ? 1 : 0x81));
                return ByteBuffer.wrap(bytes);
            case BINARY:
                return ByteBuffer.wrap(low ? new byte[0] : new byte[] {1, 2, 3});
            case DECIMAL:
                return BigDecimal.valueOf(low ? -7 : 7, ((Types.DecimalType) type).scale());
            default:
                throw new IllegalArgumentException("no partition value of type " + type);
        }
    }
}
